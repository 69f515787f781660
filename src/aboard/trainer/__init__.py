"""Trains on PyTorch's own engine: data, settings, the loop, checkpoints; only ranks import torch."""
