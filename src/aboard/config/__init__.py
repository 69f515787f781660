"""Parses and validates user input (node names, hostfiles, aboard.yaml) into values."""
