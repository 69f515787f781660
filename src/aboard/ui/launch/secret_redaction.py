"""A plan without its secrets: their names stay, their values are nowhere, not even in the words of a command."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from re import compile as compile_pattern
from re import escape

from aboard.core.plan.plan import Plan

HIDDEN = "…hidden"
# A value this short would blot out ordinary words and numbers; it is no secret either.
SHORTEST = 6


def build_redactor(plan: Plan) -> Callable[[str], str]:
    """The function that takes every secret value of this plan out of a text."""
    values = {start.env.get(name, "") for _node, start in plan.starts() for name in start.secrets}
    return _build_replacer(value for value in values if len(value) >= SHORTEST)


def _build_replacer(values: Iterable[str]) -> Callable[[str], str]:
    # The longest first: a secret that begins with another must not leave its tail behind.
    parts = sorted(map(escape, values), key=len, reverse=True)
    if not parts:
        return lambda text: text
    pattern = compile_pattern("|".join(parts))
    # The same few words stand in the plan of every rank.
    return lru_cache(maxsize=4096)(lambda text: pattern.sub(HIDDEN, text))
