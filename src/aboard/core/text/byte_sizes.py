"""Formats sizes in bytes: `512 B`, `3.5 MiB`, `41 GiB`."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
# Below this, a size has one decimal.
_TENTHS = 10


def format_size(count: float) -> str:
    """The size in its largest whole unit, with two to four digits and the sign of a negative number."""
    amount, unit = float(abs(count)), 0
    # An amount that would round up to a whole larger unit uses that unit.
    while amount >= KIB - 0.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / KIB, unit + 1
    number = f"{amount:.1f}".removesuffix(".0") if amount < _TENTHS else f"{amount:.0f}"
    return f"{'-' * (count < 0)}{number} {_UNITS[unit]}"
