"""The training loop on PyTorch's own engine: the one room that imports torch. Ranks run it; nobody else does."""
