"""The commands: in each directory the options, what the command does, and how it is shown."""
