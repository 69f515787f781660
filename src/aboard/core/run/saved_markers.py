"""The checkpoints that the record of a run vouches for: the head hands their hashes to the ranks that resume."""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated

from aboard.core.decoding import Matching, MaxLength, parse_json, try_decode
from aboard.core.run import event_kinds as kinds
from aboard.core.run.events import Event
from aboard.lazy_dataclass import dataclass

# The variable of the ranks. Each of them gets a copy, so it has the newest only.
MARKERS = "ABOARD_MARKERS"
MOST_MARKERS = 32
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class SavedMarker:
    """A checkpoint as rank 0 saved it or resumed from it; `sha256` is the hash in its marker's first line."""

    name: Annotated[str, Matching(r"step-\d{6,20}(-\d{1,6})?")]
    serial: int
    sha256: Annotated[str, Matching(r"[0-9a-f]{64}")]


_Markers = Annotated[tuple[SavedMarker, ...], MaxLength(MOST_MARKERS)]


def find_saved_marker(event: Event) -> SavedMarker | None:
    """Only rank 0's word counts: copies and the reports of other ranks have no marker."""
    body = event.body
    if not isinstance(body, kinds.FilesSaved) or event.rank != 0 or body.copied:
        return None
    return try_decode(SavedMarker, {"name": body.checkpoint.raw(), "serial": body.serial, "sha256": body.marker})


def choose_newest(markers: Iterable[SavedMarker]) -> tuple[SavedMarker, ...]:
    """The newest by serial; of one checkpoint that was reported again, the first."""
    distinct: dict[tuple[str, str], SavedMarker] = {}
    for each in markers:
        distinct.setdefault((each.name, each.sha256), each)
    return tuple(sorted(distinct.values(), key=lambda each: -each.serial)[:MOST_MARKERS])


def describe_unknown(names: Sequence[str], folder: object) -> str:
    """Why checkpoints are left out that others than this head's runs have written."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (
        f"not considered: {', '.join(names[-_SHOWN:])}{more}: no record of a run vouches for"
        f" {'it' if len(names) == 1 else 'them'}; to use it anyway: --set train.resume={folder}/{names[-1]}"
    )


def format_markers(markers: Iterable[SavedMarker]) -> str:
    rows = [{"name": each.name, "serial": each.serial, "sha256": each.sha256} for each in choose_newest(markers)]
    return json.dumps(rows, separators=(",", ":"))


def parse_markers(text: str) -> tuple[SavedMarker, ...]:
    """Parses what `format_markers` wrote."""
    return try_decode(_Markers, parse_json(text or "[]")) or ()
