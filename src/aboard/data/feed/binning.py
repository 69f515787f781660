"""Making the bins of a set of shards, window by window; nothing is tokenized for it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from aboard.data.feed.bins import BIN, Bins, BinsManifest, Packing, written_bins
from aboard.data.feed.pack import pack
from aboard.data.feed.segments import Cut, Losses, Segments, segments_of
from aboard.data.store.durable import HashedFile, held, sync_folder, write_whole
from aboard.data.store.index import DOCUMENT, Documents
from aboard.data.store.manifest import NAME
from aboard.data.store.shards import TokenShards
from aboard.diagnoses import InputError, Problem, data

# Documents that are packed together: enough for full bins, few enough to bound memory and to lie near on disk.
_WINDOW = 1 << 18
_PATIENCE = 3600.0


def judge_length(max_length: int) -> None:
    """Refuses a length that holds nothing; for those, too, who have much to do before there are bins."""
    if max_length <= 1:
        problem = Problem(where="max_length", seen=f"it is {max_length}", fix=data.LENGTH.fix())
        raise InputError(data.LENGTH, [problem])


def bins(shards: TokenShards, *, max_length: int, packing: Packing = "packed", cut: Cut = "by-kind") -> Bins:
    """The bins of this length, made once and found again; another length makes others beside them."""
    judge_length(max_length)
    home = shards.folder.with_name(f"{shards.folder.name}.bins")
    home.mkdir(exist_ok=True)
    name = f"{max_length}-{packing}-{cut}"
    folder = home / name
    with held(home / f".{name}.lock", patience=_PATIENCE):
        if not folder.is_dir():
            draft = home / f".{name}.making"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            manifest = _make(shards, draft, max_length, packing, cut)
            write_whole(draft / NAME, written_bins(manifest), sync=True)
            sync_folder(draft)
            draft.rename(folder)
            sync_folder(home)
    return Bins(folder, shards)


def _make(shards: TokenShards, folder: Path, max_length: int, packing: Packing, cut: Cut) -> BinsManifest:
    bin_file, segment_file = HashedFile(folder / "bins"), HashedFile(folder / "segments")
    losses = Losses()
    totals = np.zeros(4, np.int64)
    for number, documents in _windows(shards):
        segments, lost = segments_of(
            documents,
            number=number,
            limit=max_length,
            cut=cut,
            supervised=lambda at, length: int(shards.span(at, length)[1].sum()),
        )
        losses += lost
        entries, ordered = _filled(segments, max_length, packing)
        entries["first"] += np.uint64(totals[1])
        bin_file.write(entries.tobytes())
        segment_file.write(ordered.tobytes())
        totals[:2] += (len(entries), len(ordered))
        totals[2:] += (int(entries["tokens"].sum()), int(entries["supervised"].sum()))
    count, pieces, tokens, supervised = totals.tolist()
    return BinsManifest(
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


def _filled(segments: Segments, max_length: int, packing: Packing) -> tuple[Segments, Segments]:
    """The bins of these segments, and the segments bin by bin; within a bin in the order of their documents."""
    lengths = segments["length"].astype(np.int64)
    places = pack(lengths, max_length) if packing == "packed" else np.arange(len(segments))
    ordered = segments[np.argsort(places, kind="stable")]
    counts = np.bincount(places)
    entries = np.zeros(len(counts), BIN)
    entries["segments"] = counts
    entries["first"] = np.cumsum(counts) - counts
    entries["tokens"] = np.bincount(places, weights=lengths)
    entries["supervised"] = np.bincount(places, weights=segments["supervised"])
    return entries, ordered


def _windows(shards: TokenShards) -> Iterator[tuple[int, Documents]]:
    """Documents in order, so many at a time, with the number of the first; offsets count over the whole set."""
    waiting: list[Documents] = []
    number = held_back = 0
    for shard in range(len(shards.manifest.shards)):
        _, start = shards.starts(shard)
        for documents in shards.index(shard):
            documents["offset"] += np.uint64(start)
            waiting.append(documents)
            held_back += len(documents)
            while held_back >= _WINDOW:
                together = np.concatenate(waiting)
                yield number, together[:_WINDOW]
                number += _WINDOW
                waiting, held_back = [together[_WINDOW:]], held_back - _WINDOW
    if held_back:
        yield number, np.concatenate([np.empty(0, DOCUMENT), *waiting])
