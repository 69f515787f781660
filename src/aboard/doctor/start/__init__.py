"""The start of a run: rendezvous and initialization."""
