"""Host: each node's kernel, clock and resources; each part has its own file."""
