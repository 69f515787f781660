"""The words, as values, and the decisions over them: stdlib only, no I/O, no clock."""
