"""A run that is slower than it was: the late rank, the slow link."""
