"""Parses commands that start a launcher in a container: `singularity exec …`, `docker run …`."""
