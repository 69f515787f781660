"""Explains runs: recorded, bundled, external, or from log files."""
