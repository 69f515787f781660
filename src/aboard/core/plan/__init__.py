"""The plan of a run: the program, its ranks and their environment."""
