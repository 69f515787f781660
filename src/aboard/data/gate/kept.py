"""Tallies on disk: what a preparation counted, kept beside its shards, so that the gate needn't read the rows again.

Rows are named by the number of their file among the origins, not by its name, which may be another one by then.
Fingerprints aren't kept: the index of the shards has them.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aboard.data.gate.seen import Example, Seen
from aboard.data.gate.tally import Longest, Tally
from aboard.data.rows import Encoded, Where
from aboard.data.stats import Lengths
from aboard.diagnoses.untrusted import Untrusted

# Counts what changes a tally of the same rows.
EDITION = 1

Place = Callable[[int, int], Where]


def numbered(origin: int, line: int) -> Where:
    """A place while tallies are added up: files in the order of the origins."""
    return Where(file=Untrusted(f"{origin:010d}"), line=line)


def kept(tally: Tally, origin: int | None = None) -> dict[str, Any]:
    """As JSON has it; of one origin's rows, or of rows whose places are numbered."""

    def place(where: Where) -> list[int]:
        return [int(where.file.raw()) if origin is None else origin, where.line]

    return {
        "rows": tally.rows,
        "broken": tally.broken,
        "kinds": dict(sorted(tally.kinds.items())),
        "signs": {
            name: {"count": seen.count, "examples": [_example(each, place(each.where)) for each in seen.examples]}
            for name, seen in sorted(tally.signs.items())
        },
        "characters": _lengths(tally.characters),
        "by_kind": {kind: _lengths(each) for kind, each in sorted(tally.by_kind.items())},
        "supervised": tally.supervised,
        "longest": None
        if tally.longest is None
        else {"length": tally.longest.length, "place": place(tally.longest.where)},
    }


def tally_of(content: Mapping[str, Any], where: Place) -> Tally:
    """What `kept` has made; raises ValueError, KeyError or TypeError where that isn't it."""
    longest = content["longest"]
    return Tally(
        rows=int(content["rows"]),
        broken=int(content["broken"]),
        kinds=content["kinds"],
        signs={
            name: Seen(count=int(seen["count"]), examples=tuple(_seen(each, where) for each in seen["examples"]))
            for name, seen in content["signs"].items()
        },
        characters=_counted(content["characters"]),
        by_kind={kind: _counted(each) for kind, each in content["by_kind"].items()},
        supervised=int(content["supervised"]),
        longest=None if longest is None else Longest(length=longest["length"], where=where(*longest["place"])),
    )


def _example(each: Example, place: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"place": place, "note": each.note.raw(), "length": each.length}
    if each.encoded is not None:
        mask = "".join("1" if on else "0" for on in each.encoded.mask.tolist())
        found |= {"ids": each.encoded.ids.tolist(), "mask": mask}
    return found


def _seen(content: Mapping[str, Any], where: Place) -> Example:
    place = where(*content["place"])
    encoded = None
    if "ids" in content:
        mask = np.array([bit == "1" for bit in content["mask"]], np.bool_)
        encoded = Encoded(where=place, ids=np.array(content["ids"], np.uint32), mask=mask)
    return Example(where=place, note=Untrusted(str(content["note"])), encoded=encoded, length=content["length"])


def _lengths(lengths: Lengths) -> dict[str, Any]:
    return {"total": lengths.total, "longest": lengths.longest, "counts": sorted(lengths.counts.items())}


def _counted(content: Mapping[str, Any]) -> Lengths:
    return Lengths(counts=Counter(dict(content["counts"])), total=content["total"], longest=content["longest"])
