"""Attacks by a cloned repository: the files that a command finds in its working directory."""
