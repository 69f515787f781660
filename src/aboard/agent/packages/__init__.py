"""Creates a virtual environment on this node and installs wheels into it."""
