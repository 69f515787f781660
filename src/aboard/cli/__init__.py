"""The `aboard` command: each subcommand parses its arguments, calls one flow and renders what it returns."""
