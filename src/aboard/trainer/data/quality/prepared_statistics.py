"""Statistics of prepared data for the data check: counted during preparation, so that no row is read again."""

from collections.abc import Iterator

import numpy as np

from aboard.core.decoding import parse_json
from aboard.diagnoses.untrusted import escape_text
from aboard.file_integrity import make_damage_error
from aboard.trainer.data.quality.flagged_rows import MAX_EXAMPLES, FlaggedRows, make_example
from aboard.trainer.data.quality.row_fingerprints import FileFingerprints, RowFingerprints
from aboard.trainer.data.quality.row_statistics import DataStatistics
from aboard.trainer.data.quality.rules.truncated_answers import CUT, LOST, flag_truncation
from aboard.trainer.data.quality.statistics_json import decode_statistics
from aboard.trainer.data.rows import EncodedRow
from aboard.trainer.data.store.shard_index import Documents
from aboard.trainer.data.store.token_shards import TokenShards


def load_source_statistics(shards: TokenShards) -> tuple[DataStatistics, ...]:
    """The statistics of each source, without fingerprints and before any length limit; none for external shards."""
    entry = shards.manifest.gate_file
    if entry is None:
        return ()
    path = shards.folder / entry.name
    try:
        return tuple(decode_statistics(each, shards.where) for each in parse_json(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise make_damage_error(path, f"it can't be read ({escape_text(str(error))})") from error


def load_statistics(shards: TokenShards, max_length: int) -> DataStatistics:
    """The statistics of all sources, with answers truncated by this length and a fingerprint of each document."""
    prints = RowFingerprints()
    cuts = _TruncationCounter(shards, max_length)
    for shard in range(len(shards.manifest.shards)):
        for documents in shards.index(shard):
            for origin in np.unique(documents["origin"]).tolist():
                own, like = documents[documents["origin"] == origin], shards.where(origin, 0)
                lines, hashes = own["line"].astype(np.uint64), own["content"].astype(np.uint64)
                prints += RowFingerprints(parts=(FileFingerprints(like=like, hashes=hashes, lines=lines),))
            cuts.take(documents, shards.starts(shard)[1])
    return sum(load_source_statistics(shards), DataStatistics(prints=prints, signs=dict(cuts.signs())))


class _TruncationCounter:
    """Counts the conversations that a length truncates, from their masks alone."""

    def __init__(self, shards: TokenShards, limit: int) -> None:
        self._shards = shards
        self._limit = limit
        self._seen = {CUT: FlaggedRows(), LOST: FlaggedRows()}
        self._kept: dict[tuple[str, int], int] = {}

    def take(self, documents: Documents, start: int) -> None:
        long = documents[(documents["length"] > self._limit) & documents["whole"] & (documents["supervised"] > 0)]
        for document in long:
            ids, mask = self._shards.span(start + int(document["offset"]), int(document["length"]))
            origin = int(document["origin"])
            where = self._shards.where(origin, int(document["line"]))
            encoded = EncodedRow(location=where, ids=ids, mask=mask)
            for name, note in flag_truncation(encoded, self._limit):
                # Lines of a file come in order, so no later one can be among the first.
                example_count = self._kept.get((name, origin), 0)
                examples = (make_example(where, note, encoded),) if example_count < MAX_EXAMPLES else ()
                self._kept[name, origin] = example_count + 1
                self._seen[name] += FlaggedRows(count=1, examples=examples)

    def signs(self) -> Iterator[tuple[str, FlaggedRows]]:
        return ((name, flagged) for name, flagged in self._seen.items() if flagged)
