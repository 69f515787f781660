"""The next generation of a run: on which nodes, with which spares and copies of checkpoints."""
