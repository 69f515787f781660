"""A roster as JSON and back, for whoever looks on from another process."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from aboard.core.metrics import Way
from aboard.core.phase import Phase
from aboard.core.roster import Missing, Roster, Row, Stall, Trouble


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
    way = words.get("way")
    if way is not None:
        way = Way(metrics=way["metrics"], curve=tuple((step, loss) for step, loss in way["curve"]), at=way["at"])
    rest: dict[str, Any] = {"way": way, "phase": Phase(words["phase"]), "rows": rows, "missing": missing}
    rest["tail"] = tuple(words["tail"])
    stall = words.get("stall")
    if stall is not None:
        rest["stall"] = Stall(**{**stall, "nodes": tuple(stall["nodes"])})
    return Roster(**{**words, **rest})
