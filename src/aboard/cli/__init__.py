"""The `aboard` command: each subcommand parses its arguments, calls one flow and renders what it returns."""

from aboard.cli.command_line import main

# The entry point in pyproject.toml.
__all__ = ["main"]
