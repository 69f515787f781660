"""Inspects rows for the data check and prepares token shards, in worker processes on all cores."""
