"""Trains on PyTorch's own engine. The only package that imports torch, and only in rank processes."""

import logging

# transformers and PEFT import torchao where it is installed. It warns of kernels for other GPUs, and torch of torchao.
for name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(name).setLevel(logging.ERROR)
