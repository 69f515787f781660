"""Formats counts, step times and ranges."""

from collections.abc import Iterable

from aboard.core.text.input_text import format_count

__all__ = ["format_count", "format_pace", "format_range"]

# From this many seconds on, one decimal is enough.
TENTHS = 10


def format_pace(seconds: float) -> str:
    """The time of one step, with the digits that matter."""
    if round(seconds, 1) >= TENTHS:
        return f"{seconds:.1f} s/step"
    return f"{seconds:.2f} s/step" if round(seconds, 2) >= 0.1 else f"{seconds * 1000:.1f} ms/step"  # noqa: PLR2004 - a tenth


def format_range(values: Iterable[float | None], form: str = "{:,.0f}") -> str:
    """`41` if all are formatted alike, else `41-62`; empty if none is known."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = form.format(min(known)), form.format(max(known))
    return low if low == high else f"{low}-{high}"
