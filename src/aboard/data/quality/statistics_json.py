"""Tallies on disk: what a preparation counted, kept beside its shards, so that the gate needn't read the rows again.

Rows are named by the number of their file among the origins, not by its name, which may be another one by then.
Fingerprints aren't kept: the index of the shards has them.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aboard.data.length_statistics import LengthCounts
from aboard.data.quality.flagged_rows import ExampleRow, FlaggedRows
from aboard.data.quality.row_statistics import DataStatistics, LongestRow
from aboard.data.rows import EncodedRow, RowLocation
from aboard.diagnoses.untrusted import Untrusted

# Counts what changes a tally of the same rows.
EDITION = 1

LocationResolver = Callable[[int, int], RowLocation]


def make_numbered_location(origin: int, line: int) -> RowLocation:
    """A place while tallies are added up: files in the order of the origins."""
    return RowLocation(file=Untrusted(f"{origin:010d}"), line=line)


def encode_statistics(tally: DataStatistics, origin: int | None = None) -> dict[str, Any]:
    """As JSON has it; of one origin's rows, or of rows whose places are numbered."""

    def place(where: RowLocation) -> list[int]:
        return [int(where.file.raw()) if origin is None else origin, where.line]

    return {
        "rows": tally.rows,
        "broken": tally.broken,
        "kinds": dict(sorted(tally.kinds.items())),
        "signs": {
            name: {
                "count": flagged.count,
                "examples": [_encode_example(each, place(each.where)) for each in flagged.examples],
            }
            for name, flagged in sorted(tally.signs.items())
        },
        "characters": _encode_lengths(tally.characters),
        "by_kind": {kind: _encode_lengths(each) for kind, each in sorted(tally.by_kind.items())},
        "supervised": tally.supervised,
        "longest": None
        if tally.longest is None
        else {"length": tally.longest.length, "place": place(tally.longest.where)},
    }


def decode_statistics(content: Mapping[str, Any], where: LocationResolver) -> DataStatistics:
    """What `kept` has made; raises ValueError, KeyError or TypeError where that isn't it."""
    longest = content["longest"]
    return DataStatistics(
        rows=int(content["rows"]),
        broken=int(content["broken"]),
        kinds=content["kinds"],
        signs={
            name: FlaggedRows(
                count=int(flagged["count"]),
                examples=tuple(_decode_example(each, where) for each in flagged["examples"]),
            )
            for name, flagged in content["signs"].items()
        },
        characters=_decode_lengths(content["characters"]),
        by_kind={kind: _decode_lengths(each) for kind, each in content["by_kind"].items()},
        supervised=int(content["supervised"]),
        longest=None if longest is None else LongestRow(length=longest["length"], where=where(*longest["place"])),
    )


def _encode_example(each: ExampleRow, place: list[int]) -> dict[str, Any]:
    content: dict[str, Any] = {"place": place, "note": each.note.raw(), "length": each.length}
    if each.encoded is not None:
        mask = "".join("1" if on else "0" for on in each.encoded.mask.tolist())
        content |= {"ids": each.encoded.ids.tolist(), "mask": mask}
    return content


def _decode_example(content: Mapping[str, Any], where: LocationResolver) -> ExampleRow:
    place = where(*content["place"])
    encoded = None
    if "ids" in content:
        mask = np.array([bit == "1" for bit in content["mask"]], np.bool_)
        encoded = EncodedRow(where=place, ids=np.array(content["ids"], np.uint32), mask=mask)
    return ExampleRow(where=place, note=Untrusted(str(content["note"])), encoded=encoded, length=content["length"])


def _encode_lengths(lengths: LengthCounts) -> dict[str, Any]:
    return {"total": lengths.total, "longest": lengths.longest, "counts": sorted(lengths.counts.items())}


def _decode_lengths(content: Mapping[str, Any]) -> LengthCounts:
    return LengthCounts(counts=Counter(dict(content["counts"])), total=content["total"], longest=content["longest"])
