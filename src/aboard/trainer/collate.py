"""Packed sequences as tensors on the host: padded rows, positions that restart in each document, and labels."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.sampling.packed_sequences import PackedSequence

# Lengths are rounded up to this: kernels prefer even sizes, and the allocator sees fewer different ones.
GRAIN = 16
IGNORED = -100
LogitPositions = Literal["each", "all", "none"]


@dataclass(frozen=True, kw_only=True, eq=False)
class MicroBatch:
    """A micro-batch: `documents` numbers the documents of each row, padding last; None if each row is one document.

    `keep` are the positions, per row or shared by all rows, that predict a supervised token, and `labels` their
    targets. `ends` are the ends of documents with all rows concatenated; no document is longer than `longest`.
    `dropout_keys` are the tokens' half of an adapter's dropout masks, if it has dropout.
    """

    input_ids: Tensor
    position_ids: Tensor
    documents: Tensor | None
    keep: Tensor | None
    labels: Tensor
    ends: Tensor | None
    dropout_keys: Tensor | None
    longest: int
    fixed: bool
    tokens: int
    supervised: int

    def to(self, device: torch.device) -> "MicroBatch":
        """An asynchronous copy on the device, from pinned memory."""
        if device.type == "cpu":
            return self
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "MicroBatch":
        return self._each(Tensor.pin_memory)

    def _each(self, act: Callable[[Tensor], Tensor]) -> "MicroBatch":
        tensors = {name: act(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **tensors)  # type: ignore[arg-type] # no other field is a tensor


@dataclass(frozen=True, kw_only=True)
class Collator:
    """The layout that this model needs: rows concatenated (`flat`), and the positions that it computes logits for.

    `keeps` is "each" if every row may have its own positions, "all" if rows share them, "none" if the model always
    computes every position. With `fixed`, micro-batches have this number of rows and this length, for the compiler.
    """

    flat: bool = False
    keeps: LogitPositions = "each"
    fixed: tuple[int, int] | None = None

    def __call__(
        self, bins: Sequence[PackedSequence], dropout_keys: Sequence[NDArray[np.int32]] | None = None
    ) -> MicroBatch:
        """Collates; an empty micro-batch becomes a row of padding without loss, which keeps the ranks in step."""
        rows = [_build_row(each) for each in bins] or [_PADDING]
        tokens = sum(len(each.ids) for each in bins)
        if self.fixed is not None and not self.flat:
            rows += [_PADDING] * (self.fixed[0] - len(rows))
        if not self.flat:
            return self._build_batch(rows, dropout_keys, tokens)
        joined = None if dropout_keys is None else [np.concatenate([*dropout_keys, np.zeros(0, np.int32)])]
        return self._build_batch([_join_rows(rows)], joined, tokens)

    def _build_batch(
        self, rows: Sequence["_Row"], dropout_keys: Sequence[NDArray[np.int32]] | None, tokens: int
    ) -> MicroBatch:
        count, limit = self.fixed or (len(rows), 0)
        least = max(limit * (count if self.flat else 1), *(len(row.ids) for row in rows))
        length = -(-least // GRAIN) * GRAIN
        ids = np.zeros((len(rows), length), np.int64)
        positions = np.zeros((len(rows), length), np.int64)
        documents = np.zeros((len(rows), length), np.int32)
        several = False
        ends: list[int] = []
        for place, row in enumerate(rows):
            padding = [min(limit or length, length - at) for at in range(len(row.ids), length, limit or length)]
            sizes = np.asarray([*row.lengths, *padding], np.int64)
            last = np.cumsum(sizes)
            ids[place, : len(row.ids)] = row.ids
            positions[place] = np.arange(length) - np.repeat(last - sizes, sizes)
            documents[place] = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
            several |= len(row.lengths) > 1
            ends += (last + place * length).tolist()
        keep, labels = self._select_labels([row.labels for row in rows], length)
        return MicroBatch(
            input_ids=torch.from_numpy(ids),
            position_ids=torch.from_numpy(positions),
            documents=torch.from_numpy(documents) if several else None,
            keep=keep,
            labels=torch.from_numpy(labels),
            ends=torch.tensor([0, *ends], dtype=torch.int32) if self.flat else None,
            dropout_keys=None if dropout_keys is None else _pad_keys(dropout_keys, ids.shape),
            longest=limit or int(np.diff([0, *ends]).max()),
            fixed=self.fixed is not None,
            tokens=tokens,
            supervised=sum(len(row.labels[0]) for row in rows),
        )

    def _select_labels(self, labels: Sequence["_Labels"], length: int) -> tuple[Tensor | None, NDArray[np.int64]]:
        """The positions to compute logits for, and their labels; at least one, since kernels need it."""
        whole = np.full((len(labels), length), IGNORED, np.int64)
        for row, (places, ids) in enumerate(labels):
            whole[row, places] = ids
        if self.keeps == "none":
            return None, whole
        if self.keeps == "all" or len(labels) == 1:
            union = np.flatnonzero((whole != IGNORED).any(0))
            keep = union if len(union) else np.zeros(1, np.int64)
            return torch.from_numpy(keep), np.ascontiguousarray(whole[:, keep])
        most = max(1, *(len(places) for places, _ in labels))
        keep = np.zeros((len(labels), most), np.int64)
        row_labels = np.full((len(labels), most), IGNORED, np.int64)
        for row, (places, ids) in enumerate(labels):
            keep[row, : len(places)] = places
            row_labels[row, : len(places)] = ids
        return torch.from_numpy(keep), row_labels


# Positions that predict a supervised token, and the tokens: the one after each position, in the same document.
_Labels = tuple[NDArray[np.int64], NDArray[np.int64]]
_NO_LABELS: _Labels = (np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Row:
    ids: NDArray[np.int64]
    lengths: tuple[int, ...]
    labels: _Labels = _NO_LABELS


# What an empty micro-batch consists of.
_PADDING = _Row(ids=np.zeros(GRAIN, np.int64), lengths=(GRAIN,))


def _build_row(each: PackedSequence) -> _Row:
    ids = each.ids.astype(np.int64)
    # The first token of a document is never supervised, so the position before is always in the same document.
    places = np.flatnonzero(each.mask)
    return _Row(ids=ids, lengths=each.lengths, labels=(places - 1, ids[places]))


def _pad_keys(dropout_keys: Sequence[NDArray[np.int32]], shape: tuple[int, ...]) -> Tensor:
    padded = np.zeros(shape, np.int32)
    for row, keys in zip(padded, dropout_keys, strict=False):
        row[: len(keys)] = keys
    return torch.from_numpy(padded)


def _join_rows(rows: Sequence[_Row]) -> _Row:
    starts = np.cumsum([0, *(len(row.ids) for row in rows)])
    return _Row(
        ids=np.concatenate([row.ids for row in rows]),
        lengths=tuple(length for row in rows for length in row.lengths),
        labels=(
            np.concatenate([row.labels[0] + start for row, start in zip(rows, starts[:-1], strict=True)]),
            np.concatenate([row.labels[1] for row in rows]),
        ),
    )
