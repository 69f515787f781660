"""Lengths of time as people write them: `90s`, `10m`, `1h30m`, `2d`."""

import re

from aboard.core.errors import InputError, Problem
from aboard.core.words import visible

_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([dhms])")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str, *, where: str) -> float:
    """Seconds; a number without a unit is refused, since half of the people would mean minutes."""
    if not _WHOLE.fullmatch(text.strip()):
        seen = f"'{visible(text)}' is no length of time"
        raise InputError("duration", [Problem(where=where, seen=seen, fix=f"write it as in: {where} 10m (d, h, m, s)")])
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
