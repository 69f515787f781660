"""How several things read in one sentence."""

from collections.abc import Sequence

SHOWN = 6


def listed(words: Sequence[str], limit: int = SHOWN) -> str:
    """`a`, `a and b`, `a, b and c`, and a count when they are many."""
    if len(words) > limit:
        return f"{', '.join(words[:limit])} and {len(words) - limit} more"
    return " and ".join(filter(None, (", ".join(words[:-1]), "".join(words[-1:]))))
