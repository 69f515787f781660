"""Weights as files: found, loaded, converted and written."""
