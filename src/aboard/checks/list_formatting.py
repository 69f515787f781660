"""Lists in sentences."""

from collections.abc import Sequence

MAX_LISTED = 6


def format_list(words: Sequence[str], limit: int = MAX_LISTED) -> str:
    """`a`, `a and b`, `a, b and c`, and a count when they are many."""
    if len(words) > limit:
        return f"{', '.join(words[:limit])} and {len(words) - limit} more"
    return " and ".join(filter(None, (", ".join(words[:-1]), "".join(words[-1:]))))
