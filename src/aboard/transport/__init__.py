"""How we reach nodes, the only code that touches machines: local, ssh, simulated; frames over any duplex stream."""
