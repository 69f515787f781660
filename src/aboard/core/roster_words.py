"""A roster as JSON and back, for whoever looks on from another process."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from aboard.core.phase import Phase
from aboard.core.roster import Missing, Roster, Row, Trouble


def to_words(roster: Roster) -> dict[str, Any]:
    return asdict(roster)


def from_words(words: Mapping[str, Any]) -> Roster:
    """From what `to_words` made; both ends are ours, and of one version."""
    rows = tuple(
        Row(**{**row, "ranks": tuple(row["ranks"]), "phases": tuple((Phase(p), n) for p, n in row["phases"])})
        for row in words["rows"]
    )
    missing = tuple(
        Missing(**{**each, "trouble": Trouble(each["trouble"]), "ranks": tuple(each["ranks"])})
        for each in words["missing"]
    )
    rest = {"phase": Phase(words["phase"]), "rows": rows, "missing": missing, "tail": tuple(words["tail"])}
    return Roster(**{**words, **rest})
