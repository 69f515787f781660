"""Network: which nodes can connect to which, on which ports, with which packet sizes, over which interface."""
