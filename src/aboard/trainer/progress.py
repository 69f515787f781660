"""The progress of a training run: one global cursor and counters, the same on every rank."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

from aboard.core.decoding import decode
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.sampling.source_mixing import SequenceDraw


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingProgress:
    """After `step` steps the next sequence is at the global `index`; `ids` is the chained hash of all consumed ones."""

    step: int = 0
    index: int = 0
    tokens: int = 0
    supervised: int = 0
    ids: str = ""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "TrainingProgress":
        """The inverse of `content`; a DecodeError for what is none."""
        return decode(cls, dict(content), strict=True)

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
    """Chained per sequence, so that it doesn't depend on the sequences per step or rank."""
    chain = bytes.fromhex(ids)
    for draw in draws:
        entry = f"{draw.source}\0{draw.bin}\0{draw.epoch}".encode()
        chain = blake2b(chain + entry, digest_size=16).digest()
    return chain.hex()
