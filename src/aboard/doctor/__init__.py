"""Finds and explains failures: checks before a run, verdicts on a run. Decides only: no I/O, no clock."""
