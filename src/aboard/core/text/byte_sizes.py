"""Formats sizes in bytes: `512 B`, `3.5 MiB`, `41 GiB`; and parses those that users type."""

import re

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
# Below this, a size has one decimal.
_TENTHS = 10
# The B is required: without it, some read 1000 and others 1024, which is 7 % of a terabyte.
_SIZE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?([KMGTP])(i)?B", re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """The bytes of a text such as `200GB` or `1.5 TiB`; None if it is no size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    unit: int = (1024 if match[3] else 1000) ** " KMGTP".index(match[2].upper())
    return round(float(match[1]) * unit)


def format_size(count: float) -> str:
    """The size in its largest whole unit, with two to four digits and the sign of a negative number."""
    amount, unit = float(abs(count)), 0
    # An amount that would round up to a whole larger unit uses that unit.
    while amount >= KIB - 0.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / KIB, unit + 1
    number = f"{amount:.1f}".removesuffix(".0") if amount < _TENTHS else f"{amount:.0f}"
    return f"{'-' * (count < 0)}{number} {_UNITS[unit]}"
