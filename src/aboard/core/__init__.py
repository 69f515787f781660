"""Aboard's values and the pure decisions over them: stdlib only, no I/O, no clock."""
