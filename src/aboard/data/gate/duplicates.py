"""Rows that are there more than once, and validation rows that are trained on."""

from collections.abc import Iterator

import numpy as np

from aboard.data.gate.evidence import MANY, Evidence, share
from aboard.data.gate.prints import Prints
from aboard.data.gate.seen import KEPT
from aboard.data.rows import Where
from aboard.diagnoses import NO_FIX, Finding, Fix, Severity, data_quality, join_fixes

# Below a hundredth it is worth a line; from here on a file is probably there twice.
TWICE = 0.3


def duplicates(evidence: Evidence) -> Iterator[Finding]:
    """What is there twice is learned twice, and by heart."""
    prints = evidence.tally.prints
    hashes = prints.hashes
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1
    if not len(again):
        return
    count, rows = len(again), len(hashes)
    severity = Severity.BLOCK if count >= TWICE * rows else Severity.WARN if count >= MANY * rows else Severity.INFO
    # By place, so that the first ones are named, whatever their hashes.
    pairs = sorted((int(order[at]), int(order[at - 1])) for at in again)[:KEPT]
    told = ", ".join(f"{prints.where(one)} as {prints.where(other)}" for one, other in pairs)
    yield data_quality.DUPLICATES.finding(
        severity=severity,
        nodes=(),
        seen=f"{_about(prints)}{share(count, rows)} are there already: {told}{' …' if count > KEPT else ''}",
        why="What is there twice is learned twice, and by heart. A whole file that is there twice is usually a slip.",
        fix=join_fixes(_once(evidence), evidence.allow(data_quality.DUPLICATES)),
    )


def leaks(evidence: Evidence) -> Iterator[Finding]:
    """A validation row that is trained on makes the validation loss a lie."""
    if evidence.validation is None:
        return
    level = max(evidence.validation.prints.level, evidence.tally.prints.level)
    held, trained = evidence.validation.prints.at(level), evidence.tally.prints.at(level)
    both = np.flatnonzero(np.isin(held.hashes, trained.hashes))
    if not len(both):
        return
    told = ", ".join(f"{held.where(int(at))} as {_place(trained, held.hashes[at])}" for at in both[:KEPT])
    count, rows = len(both), len(held.hashes)
    yield data_quality.LEAK.finding(
        severity=Severity.BLOCK if count >= MANY * rows else Severity.WARN,
        nodes=(),
        seen=f"{_about(held)}{share(count, rows, 'validation rows')} are trained on too: {told}"
        f"{' …' if count > KEPT else ''}",
        why="The validation loss then says how well rows were learned by heart, and falls while the model gets worse.",
        fix=join_fixes(_apart(evidence), evidence.allow(data_quality.LEAK)),
    )


def _once(evidence: Evidence) -> Fix:
    return data_quality.DUPLICATES.fix("once", files=evidence.files) if _lines(evidence.files) else NO_FIX


def _apart(evidence: Evidence) -> Fix:
    if len(evidence.held) != 1 or not _lines((*evidence.held, *evidence.files)):
        return NO_FIX
    return data_quality.LEAK.fix("apart", held=evidence.held[0], files=evidence.files)


def _lines(files: tuple[str, ...]) -> bool:
    """What works on lines is told for files of lines only."""
    return all(name.endswith(".jsonl") for name in files)


def _about(prints: Prints) -> str:
    return f"in one of {1 << prints.level} rows, looked at for all: " if prints.level else ""


def _place(prints: Prints, value: np.uint64) -> Where:
    """Where the first row with this hash stands."""
    return prints.where(int(np.flatnonzero(prints.hashes == value)[0]))
