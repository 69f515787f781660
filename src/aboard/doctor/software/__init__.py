"""Software: what ranks will import and run (Python, packages, code, variables) is the same on every node."""
