"""Captures the launcher that a script starts: it is handed to the head, and ends with the code of the run."""
