"""Packs the documents of token shards into sequences, window by window, without tokenizing again."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from aboard.diagnoses import InputError
from aboard.durable_files import HashedFile, hold_lock, sync_folder, write_atomically
from aboard.trainer.data.sampling.best_fit_packing import pack_lengths
from aboard.trainer.data.sampling.document_segments import OverflowPolicy, Segments, TruncationLosses, build_segments
from aboard.trainer.data.sampling.packed_sequences import (
    SEQUENCE_DTYPE,
    PackedSequences,
    Packing,
    PackingManifest,
    format_packing_manifest,
)
from aboard.trainer.data.store.shard_index import DOCUMENT_DTYPE, Documents
from aboard.trainer.data.store.shard_manifest import MANIFEST_NAME
from aboard.trainer.data.store.token_shards import TokenShards
from aboard.trainer.diagnoses import data

# Documents that are packed together: enough for full sequences, few enough to bound memory and stay close on disk.
_WINDOW = 1 << 18
_PATIENCE = 3600.0


def check_max_length(max_length: int) -> None:
    """Rejects a length without room for a prediction; also called before long work starts."""
    if max_length <= 1:
        raise InputError.of(data.LENGTH, "max_length", f"it is {max_length}")


def build_packed_sequences(
    shards: TokenShards, *, max_length: int, packing: Packing = "packed", cut: OverflowPolicy = "by-kind"
) -> PackedSequences:
    """The packed sequences of this length, made once and found again; another length is stored beside them."""
    check_max_length(max_length)
    home = shards.folder.with_name(f"{shards.folder.name}.bins")
    home.mkdir(exist_ok=True)
    name = f"{max_length}-{packing}-{cut}"
    folder = home / name
    with hold_lock(home / f".{name}.lock", patience=_PATIENCE):
        if not folder.is_dir():
            draft = home / f".{name}.making"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            manifest = _write_sequences(shards, draft, max_length, packing, cut)
            write_atomically(draft / MANIFEST_NAME, format_packing_manifest(manifest), sync=True)
            sync_folder(draft)
            draft.rename(folder)
            sync_folder(home)
    return PackedSequences(folder, shards)


def _write_sequences(
    shards: TokenShards, folder: Path, max_length: int, packing: Packing, cut: OverflowPolicy
) -> PackingManifest:
    bin_file, segment_file = HashedFile(folder / "bins"), HashedFile(folder / "segments")
    losses = TruncationLosses()
    totals = np.zeros(4, np.int64)
    for number, documents in _iterate_windows(shards):
        segments, window_losses = build_segments(
            documents,
            number=number,
            limit=max_length,
            cut=cut,
            supervised=lambda at, length: int(shards.span(at, length)[1].sum()),
        )
        losses += window_losses
        entries, ordered = _fill_sequences(segments, max_length, packing)
        entries["first"] += np.uint64(totals[1])
        bin_file.write(entries.tobytes())
        segment_file.write(ordered.tobytes())
        totals[:2] += (len(entries), len(ordered))
        totals[2:] += (int(entries["tokens"].sum()), int(entries["supervised"].sum()))
    count, pieces, tokens, supervised = totals.tolist()
    return PackingManifest(
        max_length=max_length,
        packing=packing,
        cut=cut,
        shards=shards.identity,
        bins=count,
        segments=pieces,
        tokens=tokens,
        supervised=supervised,
        losses=losses,
        bin_file=bin_file.publish(sync=True),
        segment_file=segment_file.publish(sync=True),
    )


def _fill_sequences(segments: Segments, max_length: int, packing: Packing) -> tuple[Segments, Segments]:
    """The sequences of these segments, and the segments sorted by sequence, within each by document."""
    lengths = segments["length"].astype(np.int64)
    places = pack_lengths(lengths, max_length) if packing == "packed" else np.arange(len(segments))
    ordered = segments[np.argsort(places, kind="stable")]
    counts = np.bincount(places)
    entries = np.zeros(len(counts), SEQUENCE_DTYPE)
    entries["segments"] = counts
    entries["first"] = np.cumsum(counts) - counts
    entries["tokens"] = np.bincount(places, weights=lengths)
    entries["supervised"] = np.bincount(places, weights=segments["supervised"])
    return entries, ordered


def _iterate_windows(shards: TokenShards) -> Iterator[tuple[int, Documents]]:
    """Documents in order, one window at a time, with the number of the first; offsets count over the whole set."""
    waiting: list[Documents] = []
    number = waiting_count = 0
    for shard in range(len(shards.manifest.shards)):
        _, start = shards.starts(shard)
        for documents in shards.index(shard):
            documents["offset"] += np.uint64(start)
            waiting.append(documents)
            waiting_count += len(documents)
            while waiting_count >= _WINDOW:
                together = np.concatenate(waiting)
                yield number, together[:_WINDOW]
                number += _WINDOW
                waiting, waiting_count = [together[_WINDOW:]], waiting_count - _WINDOW
    if waiting_count:
        yield number, np.concatenate([np.empty(0, DOCUMENT_DTYPE), *waiting])
