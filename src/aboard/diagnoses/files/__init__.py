"""Failures of reading, writing and copying files, here and between nodes."""
