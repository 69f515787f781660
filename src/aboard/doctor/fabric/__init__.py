"""Fabric: InfiniBand and RoCE ports on every node, and how NCCL will use them."""
