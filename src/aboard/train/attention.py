"""Which attention a training uses."""

from importlib.util import find_spec

import torch

from aboard.core.training import Training


def attention(training: Training, device: torch.device) -> str | None:
    """As asked; `auto` is flash-attn on a GPU in bf16 where it is installed, else None: the model's own choice."""
    if training.attn_implementation != "auto":
        return training.attn_implementation
    flash = device.type == "cuda" and training.bf16 and find_spec("flash_attn") is not None
    return "flash_attention_2" if flash else None
