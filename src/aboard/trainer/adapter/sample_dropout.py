"""Dropout whose masks follow from the sample, not from a generator: the same on any number of ranks, and recomputed.

A mask is a hash of the token (run seed, source, epoch, sequence, position) and of the feature (run seed, module,
number). The token's half comes with the micro-batch and the feature's half is a buffer, so that the device computes
one product and one comparison per number: the top bits of a product of two random odd numbers are uniform and pairwise
independent.
"""

from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aboard.diagnoses import TrainerError
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.sampling.source_mixing import SequenceDraw
from aboard.trainer.diagnoses import adapter


@dataclass
class DropoutKeys:
    """The keys of the micro-batch whose forward or backward runs: of all its tokens, and of those with logits."""

    tokens: Tensor | None = None
    with_logits: Tensor | None = None

    def set(self, tokens: Tensor, keep: Tensor | None) -> None:
        self.tokens = tokens[..., None]
        if keep is None:
            self.with_logits = self.tokens
        else:
            self.with_logits = (tokens[:, keep] if keep.dim() == 1 else tokens.gather(1, keep))[..., None]


class SampleDropout(nn.Module):
    """`nn.Dropout` for inputs of `size` features, with the mask of the current micro-batch's samples."""

    def __init__(self, rate: float, size: int, *, seed: int, name: str, keys: DropoutKeys, head: bool = False) -> None:
        super().__init__()
        self.name, self.keys, self.head = name, keys, head
        self.scale = 1 / (1 - rate)
        # Products are uniform over all 32-bit integers.
        self.first_kept = round((rate - 0.5) * 2**32)
        factors = torch.from_numpy(_hash_numbers(f"{seed} {name}", size))
        self.register_buffer("factors", factors, persistent=False)
        self.factors: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keys = self.keys.with_logits if self.head else self.keys.tokens
        if keys is None or keys.numel() != x.shape[:-1].numel():
            raise TrainerError(
                adapter.DROPOUT, f"{self.name} gets {x.shape[:-1].numel()} inputs, not one for each token"
            )
        kept = keys.view(*x.shape[:-1], 1) * self.factors >= self.first_kept
        # What dropout's own backward calls: one kernel for mask and scale.
        dropped: Tensor = torch.ops.aten.native_dropout_backward(x, kept, self.scale)
        return dropped


def compute_token_keys(seed: int, draw: SequenceDraw, length: int) -> NDArray[np.int32]:
    """The token's half of the masks, for each position of a sequence."""
    return _hash_numbers(f"{seed} {draw.epoch} {draw.bin} {draw.source}", length)


def find_dropout_keys(model: nn.Module) -> DropoutKeys | None:
    return next((each.keys for each in model.modules() if isinstance(each, SampleDropout)), None)


def _hash_numbers(text: str, count: int) -> NDArray[np.int32]:
    """Random odd numbers: splitmix64 from a start that depends on the text."""
    start = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    value = np.uint64(start) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return ((value >> np.uint64(32)) | np.uint64(1)).astype(np.uint32).view(np.int32)
