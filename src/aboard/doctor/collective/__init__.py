"""Collective: a real torch.distributed job over all nodes, checked for correct sums and even rates on every link."""
