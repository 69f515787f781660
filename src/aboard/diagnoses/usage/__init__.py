"""Failures of commands, configuration files and the sandbox."""
