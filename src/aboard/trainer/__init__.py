"""Trains on PyTorch's own engine: data, settings, the loop, checkpoints. The only room that imports torch, in ranks."""

import logging

# transformers and PEFT import torchao where it is installed. It warns of kernels for other GPUs, and torch of torchao.
for name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(name).setLevel(logging.ERROR)
