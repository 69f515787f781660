"""Values and decisions about the Python environment of the head and the nodes."""
