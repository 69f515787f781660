"""How far a training is: one global cursor and what was counted on the way, the same on every rank."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

from aboard.data.sampling.source_mixing import SequenceDraw
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingProgress:
    """After `step` steps the next bin is that at the global `index`; `ids` is the chained hash of all consumed ones."""

    step: int = 0
    index: int = 0
    tokens: int = 0
    supervised: int = 0
    ids: str = ""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "TrainingProgress":
        """From what `content` made."""
        return cls(**content)

    def content(self) -> dict[str, Any]:
        return asdict(self)

    def after(self, draws: Iterable[SequenceDraw], *, bins: int, tokens: int, supervised: int) -> "TrainingProgress":
        """One step further."""
        return TrainingProgress(
            step=self.step + 1,
            index=self.index + bins,
            tokens=self.tokens + tokens,
            supervised=self.supervised + supervised,
            ids=chain_ids(self.ids, draws),
        )


def chain_ids(ids: str, draws: Iterable[SequenceDraw]) -> str:
    """Bin by bin, so that it doesn't show how many of them a step or a rank took."""
    chain = bytes.fromhex(ids)
    for draw in draws:
        entry = f"{draw.source}\0{draw.bin}\0{draw.epoch}".encode()
        chain = blake2b(chain + entry, digest_size=16).digest()
    return chain.hex()
