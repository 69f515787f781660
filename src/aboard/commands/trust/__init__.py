"""`aboard trust`: lets this machine, or all nodes of a mesh, log in to every node; and takes it back."""
