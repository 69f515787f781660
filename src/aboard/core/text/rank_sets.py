"""Parses rank sets such as `3,5-7`, and folds ranks back into them."""

import re
from collections.abc import Collection, Iterable

from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration

MAX_RANK = 10_000_000

_SPAN = re.compile(r"\s*([0-9]{1,8})(?:\s*-\s*([0-9]{1,8}))?\s*")


def parse_ranks(text: str, *, where: str = "--rank") -> frozenset[int]:
    """Parses a rank set; reports every invalid part at once."""
    ranks: set[int] = set()
    problems: list[Problem] = []
    for part in text.split(","):
        match = _SPAN.fullmatch(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not low <= high < MAX_RANK:
            seen = f"'{escape_text(part)}' is neither a rank nor a range of ranks"
            problems.append(Problem(where=where, seen=seen, fix=configuration.RANKS.fix(option=where)))
        else:
            ranks.update(range(low, high + 1))
    if problems:
        raise InputError(configuration.RANKS, problems)
    return frozenset(ranks)


def fold_ranks(ranks: Iterable[int]) -> str:
    """Folds ranks into a rank set: `0-7,9`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def name_ranks(ranks: Collection[int], noun: str = "rank") -> str:
    """Ranks as the subject of a sentence: `rank 3`, or `ranks 0-6,8`."""
    return f"{noun}{'s' * (len(ranks) != 1)} {fold_ranks(ranks)}"
