"""Container: every node can start it from the same image, and ranks inside see what the node has."""
