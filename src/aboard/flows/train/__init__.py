"""Prepares a training run: data, model, memory, files on the nodes, checkpoint."""
