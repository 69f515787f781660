"""Failures of a run that more than one subject of the doctor finds: how ranks die, copies of checkpoints."""
