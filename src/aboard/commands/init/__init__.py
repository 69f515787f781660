"""`aboard init`: contacts the nodes, and writes aboard.yaml with what was found."""
