"""Messages about a run: delivered by a process of their own, to a web hook or a program."""
