"""What the gate must know of prepared data: counted when it was prepared, so that no row is read again."""

import json
from collections.abc import Iterator

import numpy as np

from aboard.data.gate.cut import CUT, LOST, cut_signs
from aboard.data.gate.kept import tally_of
from aboard.data.gate.prints import Part, Prints
from aboard.data.gate.seen import KEPT, Seen, example
from aboard.data.gate.tally import Tally
from aboard.data.rows import Encoded
from aboard.data.store.index import Documents
from aboard.data.store.shards import TokenShards
from aboard.data.store.sound import damaged
from aboard.diagnoses.untrusted import visible


def tallies(shards: TokenShards) -> tuple[Tally, ...]:
    """Of each source by itself, without fingerprints and whatever the length is; none for shards that others wrote."""
    entry = shards.manifest.gate_file
    if entry is None:
        return ()
    path = shards.folder / entry.name
    try:
        return tuple(tally_of(each, shards.where) for each in json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, f"it can't be read ({visible(str(error))})") from error


def tally(shards: TokenShards, max_length: int) -> Tally:
    """Of all sources, with the answers that this length cuts off, and a fingerprint of each document's tokens."""
    prints = Prints()
    cuts = _Cuts(shards, max_length)
    for shard in range(len(shards.manifest.shards)):
        for documents in shards.index(shard):
            for origin in np.unique(documents["origin"]).tolist():
                lot = documents[documents["origin"] == origin]
                like = shards.where(origin, 0)
                lines, hashes = lot["line"].astype(np.uint64), lot["content"].astype(np.uint64)
                prints += Prints(parts=(Part(like=like, hashes=hashes, lines=lines),))
            cuts.take(documents, shards.starts(shard)[1])
    return sum(tallies(shards), Tally(prints=prints, signs=dict(cuts.signs())))


class _Cuts:
    """Counts the conversations that a length cuts off, by their masks alone."""

    def __init__(self, shards: TokenShards, limit: int) -> None:
        self._shards = shards
        self._limit = limit
        self._seen = {CUT: Seen(), LOST: Seen()}
        self._kept: dict[tuple[str, int], int] = {}

    def take(self, documents: Documents, start: int) -> None:
        long = documents[(documents["length"] > self._limit) & documents["whole"] & (documents["supervised"] > 0)]
        for document in long:
            ids, mask = self._shards.span(start + int(document["offset"]), int(document["length"]))
            origin = int(document["origin"])
            where = self._shards.where(origin, int(document["line"]))
            encoded = Encoded(where=where, ids=ids, mask=mask)
            for name, note in cut_signs(encoded, self._limit):
                # Lines of a file come in order, so that no later one can be among its first.
                kept = self._kept.get((name, origin), 0)
                examples = (example(where, note, encoded),) if kept < KEPT else ()
                self._kept[name, origin] = kept + 1
                self._seen[name] += Seen(count=1, examples=examples)

    def signs(self) -> Iterator[tuple[str, Seen]]:
        return ((name, seen) for name, seen in self._seen.items() if seen)
