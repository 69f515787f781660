"""Splits documents into segments that fit a sequence: whole, truncated or split, with the losses counted."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.store.shard_index import Documents

OverflowPolicy = Literal["by-kind", "split", "truncate"]

# A span of tokens that is trained as one: its start in the set, its document, its length, its supervised tokens.
SEGMENT_DTYPE = np.dtype([("at", "<u8"), ("document", "<u8"), ("length", "<u4"), ("supervised", "<u4")])
Segments = NDArray[np.void]


@dataclass(frozen=True, kw_only=True, slots=True)
class TruncationLosses:
    """What the length limit removes from documents; always reported."""

    split: int = 0
    truncated: int = 0
    dropped: int = 0
    tokens_lost: int = 0
    supervised_lost: int = 0

    def __add__(self, other: "TruncationLosses") -> "TruncationLosses":
        added = asdict(other)
        return TruncationLosses(**{name: count + added[name] for name, count in asdict(self).items()})


def build_segments(
    documents: Documents, *, number: int, limit: int, cut: OverflowPolicy, supervised: Callable[[int, int], int]
) -> tuple[Segments, TruncationLosses]:
    """The segments of consecutive documents starting at number `number`; `offset` must count over the whole set.

    By kind, text continues in the next segment and a conversation is truncated: its rest would be an answer without its
    question. `supervised(at, length)` counts the supervised tokens of a span; it is called for cut documents only.
    """
    lengths = documents["length"].astype(np.int64)
    whole = documents["whole"] if cut == "by-kind" else np.full(len(documents), cut == "truncate")
    long = lengths > limit
    pieces = np.where(long & ~whole, -(-lengths // limit), 1)
    owner = np.repeat(np.arange(len(documents)), pieces)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    segments = np.zeros(len(owner), SEGMENT_DTYPE)
    segments["at"] = documents["offset"][owner] + (place * limit).astype(np.uint64)
    segments["document"] = number + owner
    segments["length"] = np.minimum(lengths[owner] - place * limit, limit)
    segments["supervised"] = documents["supervised"][owner]
    full = documents["supervised"] == lengths - 1
    segments["supervised"] = np.where((long & full)[owner], segments["length"] - 1, segments["supervised"])
    for index in np.flatnonzero((long & ~full)[owner]).tolist():
        segments[index]["supervised"] = supervised(int(segments[index]["at"]), int(segments[index]["length"]))
    # A single token predicts nothing, and nothing predicts it.
    usable = segments[segments["length"] > 1]
    losses = TruncationLosses(
        split=int((pieces > 1).sum()),
        truncated=int((long & whole).sum()),
        dropped=int((lengths <= 1).sum()),
        tokens_lost=int(lengths.sum()) - int(usable["length"].sum()),
        supervised_lost=int(documents["supervised"].sum()) - int(usable["supervised"].sum()),
    )
    return usable, losses
