"""Attacks by the author of a model, a checkpoint, an adapter or a data set."""
