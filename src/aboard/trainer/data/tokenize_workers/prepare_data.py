"""Prepares sources as token shards and packed sequences: on all cores, once per content, resumed if interrupted."""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from aboard.agent.private_folders import make_private_folder
from aboard.content_hash_cache import ContentHashCache
from aboard.durable_files import FileEntry, hold_lock
from aboard.file_integrity import check_file_hash
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.quality import prepared_statistics
from aboard.trainer.data.quality.row_statistics import DataStatistics
from aboard.trainer.data.sampling.document_segments import OverflowPolicy
from aboard.trainer.data.sampling.packed_sequences import PackedSequences, Packing
from aboard.trainer.data.sampling.sequence_packing import build_packed_sequences, check_max_length
from aboard.trainer.data.store.token_shards import TokenShards
from aboard.trainer.data.tokenize_workers.encoded_unit import RowEncoder
from aboard.trainer.data.tokenize_workers.preparation import SHARD_BYTES, Preparation, PreparationSource
from aboard.trainer.data.tokenize_workers.tokenize_progress import TokenizeProgress

__all__ = ["PreparationSource", "PreparedData", "TokenizeProgress", "prepare_data"]

# For another process that prepares the same data: it is alive while it holds the lock, and may take long.
_PATIENCE = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """What training reads; `cached` if it existed already."""

    shards: TokenShards
    bins: PackedSequences
    cached: bool

    @cached_property
    def statistics(self) -> DataStatistics:
        """The statistics for the data check, for this encoder and sequence length; reads no row."""
        return prepared_statistics.load_statistics(self.shards, self.bins.manifest.max_length)

    @property
    def tallies(self) -> tuple[DataStatistics, ...]:
        """The statistics of each source in the given order, without fingerprints and truncation."""
        return prepared_statistics.load_source_statistics(self.shards)


def prepare_data(
    sources: Sequence[PreparationSource],
    encoder: RowEncoder,
    cache: Path,
    *,
    max_length: int,
    packing: Packing = "packed",
    cut: OverflowPolicy = "by-kind",
    workers: int | None = None,
    progress: Callable[[TokenizeProgress], None] = lambda _: None,
    shard_bytes: int = SHARD_BYTES,
) -> PreparedData:
    """The shards and packed sequences of these sources, made or cached: equal bytes for any number of workers.

    A shard contains about `shard_bytes` of its source.
    """
    check_max_length(max_length)
    cores = workers or len(os.sched_getaffinity(0))
    make_private_folder(cache)
    prints = ContentHashCache(cache / "fingerprints.json")
    work = Preparation(sources, encoder, cache, prints=prints, workers=cores, shard_bytes=shard_bytes)
    with hold_lock(cache / f"{work.key}.lock", patience=_PATIENCE):
        cached = work.folder.is_dir()
        if cached:
            work.clean()
        else:
            work.make(progress)
    shards = TokenShards(work.folder, names=work.names)
    if cached:  # new files were hashed as they were written
        _verify_files(shards.folder, shards.manifest.files, prints, cores)
    sequences = build_packed_sequences(shards, max_length=max_length, packing=packing, cut=cut)
    if cached:
        _verify_files(sequences.folder, sequences.manifest.files, prints, cores)
    return PreparedData(shards=shards, bins=sequences, cached=cached)


def _verify_files(folder: Path, files: Sequence[FileEntry], cache: ContentHashCache, threads: int) -> None:
    """Verifies by hash; files unchanged since they were hashed are not read again."""
    contents = cache.of([folder / file.name for file in files], threads=threads)
    for file, content in zip(files, contents, strict=True):
        check_file_hash(folder, file, content.sha256)
