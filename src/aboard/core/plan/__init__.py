"""What is started where: the program, its ranks and their environment."""
