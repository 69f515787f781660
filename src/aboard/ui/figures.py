"""Figures as people say them: how long, how much, how many, from where to where."""

from collections.abc import Iterable

MINUTE, HOUR, DAY = 60, 3600, 86_400
# Below this, tenths of a second tell something.
TENTHS = 10
KIBI = 1024


def span(seconds: float) -> str:
    """How long: two units at the most, `4.1 s`, `42 s`, `3 min 12 s`, `2 h 5 min`, `3 d 4 h`."""
    if round(seconds, 1) < TENTHS:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for size, name, below, small in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", 1, "s")):
        if whole >= size:
            many, rest = divmod(whole, size)
            return f"{many} {name} {rest // below} {small}" if rest // below else f"{many} {name}"
    return f"{whole} s"


def size(amount: float) -> str:
    """Bytes, as `512 B`, `3.5 MiB`, `41 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < KIBI - 0.5:
            return f"{amount:.1f} {unit}" if 0 < amount < TENTHS and unit != "B" else f"{amount:.0f} {unit}"
        amount /= KIBI
    return f"{amount:,.1f} TiB"


def pace(seconds: float) -> str:
    """Seconds of one step, with as many digits as matter."""
    if round(seconds, 1) >= TENTHS:
        return f"{seconds:.1f} s/step"
    return f"{seconds:.2f} s/step" if round(seconds, 2) >= 0.1 else f"{seconds * 1000:.1f} ms/step"  # noqa: PLR2004 - a tenth


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def among(values: Iterable[float | None], form: str = "{:,.0f}") -> str:
    """`41` when all are alike as written, else `41-62`; nothing where nobody knows."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = form.format(min(known)), form.format(max(known))
    return low if low == high else f"{low}-{high}"
