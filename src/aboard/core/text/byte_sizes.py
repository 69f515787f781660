"""Bytes as people say them, in one way everywhere: `512 B`, `3.5 MiB`, `41 GiB`."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
# Below so many of a unit, a tenth of it tells something.
_TENTHS = 10


def format_size(count: float) -> str:
    """In the largest unit of which there is at least one, two to four digits; less than nothing has its sign."""
    amount, unit = float(abs(count)), 0
    # What would be rounded to a whole larger unit is one.
    while amount >= KIB - 0.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / KIB, unit + 1
    number = f"{amount:.1f}".removesuffix(".0") if amount < _TENTHS else f"{amount:.0f}"
    return f"{'-' * (count < 0)}{number} {_UNITS[unit]}"
