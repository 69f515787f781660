"""Reach: which nodes are reachable, how long the login takes, and which shell ranks get."""
