"""The training loop on PyTorch's own engine. The only package that imports torch; only ranks run it."""
