"""From sources to token shards and bins: on all cores, once for each content, resumed where it was interrupted."""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from aboard.data.feed.binning import bins, judge_length
from aboard.data.feed.bins import Bins, Packing
from aboard.data.feed.segments import Cut
from aboard.data.gate import prepared
from aboard.data.gate.tally import Tally
from aboard.data.store.durable import held
from aboard.data.store.fingerprints import Fingerprints
from aboard.data.store.manifest import FileEntry
from aboard.data.store.shards import TokenShards
from aboard.data.store.sound import judge_hash
from aboard.data.workshop.counting import Progress
from aboard.data.workshop.unit import Encode
from aboard.data.workshop.work import SHARD_BYTES, Source, Work
from aboard.lazy import dataclass

__all__ = ["Prepared", "Progress", "Source", "prepare"]

# For another process that prepares the same: it is alive as long as it holds the lock, and may have much to do.
_PATIENCE = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What training reads; `cached` when it was there already."""

    shards: TokenShards
    bins: Bins
    cached: bool

    @cached_property
    def tally(self) -> Tally:
        """What the gate judges, on the terms of the encoder and the length of the bins; no row is read for it."""
        return prepared.tally(self.shards, self.bins.manifest.max_length)

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """Of each source by itself, in the order in which they were given, without fingerprints and cut answers."""
        return prepared.tallies(self.shards)


def prepare(
    sources: Sequence[Source],
    encoder: Encode,
    cache: Path,
    *,
    max_length: int,
    packing: Packing = "packed",
    cut: Cut = "by-kind",
    workers: int | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    shard_bytes: int = SHARD_BYTES,
) -> Prepared:
    """The shards and bins of these sources, made or found in the cache: the same bytes on any number of workers.

    A shard holds about `shard_bytes` of its source.
    """
    judge_length(max_length)
    cores = workers or len(os.sched_getaffinity(0))
    cache.mkdir(parents=True, exist_ok=True)
    prints = Fingerprints(cache / "fingerprints.json")
    work = Work(sources, encoder, cache, prints=prints, workers=cores, shard_bytes=shard_bytes)
    with held(cache / f"{work.key}.lock", patience=_PATIENCE):
        cached = work.folder.is_dir()
        if cached:
            work.clean()
        else:
            work.make(progress)
    shards = TokenShards(work.folder, names=work.names)
    if cached:  # what was made just now was hashed as it was written
        _judge(shards.folder, shards.manifest.files, prints, cores)
    found = bins(shards, max_length=max_length, packing=packing, cut=cut)
    if cached:
        _judge(found.folder, found.manifest.files, prints, cores)
    return Prepared(shards=shards, bins=found, cached=cached)


def _judge(folder: Path, files: Sequence[FileEntry], prints: Fingerprints, threads: int) -> None:
    """By hash, but files that haven't changed since they were hashed are not read again."""
    contents = prints.of([folder / file.name for file in files], threads=threads)
    for file, content in zip(files, contents, strict=True):
        judge_hash(folder, file, content.sha256)
