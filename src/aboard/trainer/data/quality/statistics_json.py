"""Statistics on disk: counted by a preparation and stored beside its shards, so that the data check reads no rows.

Files are identified by their number among the origins, not by name, since they may be renamed. Fingerprints aren't
stored: the shard index has them.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.length_statistics import LengthCounts
from aboard.trainer.data.quality.flagged_rows import ExampleRow, FlaggedRows
from aboard.trainer.data.quality.row_sample import RowSample, SampledRow
from aboard.trainer.data.quality.row_statistics import DataStatistics, LongestRow
from aboard.trainer.data.rows import EncodedRow, RowLocation

# Incremented when the statistics of the same rows change.
EDITION = 3

LocationResolver = Callable[[int, int], RowLocation]


def make_numbered_location(origin: int, line: int) -> RowLocation:
    """A location with the number of its file, so that files sort in the order of the origins."""
    return RowLocation(file=Untrusted(f"{origin:010d}"), line=line)


def encode_statistics(statistics: DataStatistics, origin: int | None = None) -> dict[str, Any]:
    """The statistics as JSON: of one origin's rows, or of rows with numbered locations."""

    def place(location: RowLocation) -> list[int]:
        return [int(location.file.raw()) if origin is None else origin, location.line]

    return {
        "rows": statistics.rows,
        "broken": statistics.broken,
        "kinds": dict(sorted(statistics.kinds.items())),
        "signs": {
            name: {
                "count": flagged.count,
                "examples": [_encode_example(each, place(each.location)) for each in flagged.examples],
            }
            for name, flagged in sorted(statistics.signs.items())
        },
        "characters": _encode_lengths(statistics.characters),
        "by_kind": {kind: _encode_lengths(each) for kind, each in sorted(statistics.by_kind.items())},
        "supervised": statistics.supervised,
        "sample": [[place(each.location), *_list_sampled_texts(each)] for each in statistics.sample.rows],
        "longest": None
        if statistics.longest is None
        else {"length": statistics.longest.length, "place": place(statistics.longest.location)},
    }


def decode_statistics(content: Mapping[str, Any], where: LocationResolver) -> DataStatistics:
    """The inverse of `encode_statistics`; raises ValueError, KeyError or TypeError for invalid content."""
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
        sample=_decode_sample(content["sample"], where),
        longest=None if longest is None else LongestRow(length=longest["length"], location=where(*longest["place"])),
    )


_SAMPLED = ("kind", "prompt", "answer", "ending", "length", "words", "blanks", "repeated", "system")


def _list_sampled_texts(row: SampledRow) -> list[str | int]:
    return [getattr(row, name) for name in _SAMPLED]


def _decode_sample(content: Sequence[Any], where: LocationResolver) -> RowSample:
    rows = (
        SampledRow(location=where(*place), **dict(zip(_SAMPLED, values, strict=True))) for place, *values in content
    )
    return RowSample() + RowSample(rows=tuple(rows))


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
        encoded = EncodedRow(location=place, ids=np.array(content["ids"], np.uint32), mask=mask)
    return ExampleRow(location=place, note=Untrusted(str(content["note"])), encoded=encoded, length=content["length"])


def _encode_lengths(lengths: LengthCounts) -> dict[str, Any]:
    return {"total": lengths.total, "longest": lengths.longest, "counts": sorted(lengths.counts.items())}


def _decode_lengths(content: Mapping[str, Any]) -> LengthCounts:
    return LengthCounts(counts=Counter(dict(content["counts"])), total=content["total"], longest=content["longest"])
