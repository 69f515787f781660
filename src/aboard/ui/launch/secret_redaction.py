"""Removes the values of a plan's secrets from texts, including commands; their names stay."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from re import compile as compile_pattern
from re import escape

from aboard.core.plan.plan import Plan

HIDDEN = "…hidden"
# A shorter value would blot out ordinary words and numbers, and is hardly a secret.
SHORTEST = 6


def build_redactor(plan: Plan) -> Callable[[str], str]:
    """Returns the function that removes every secret value of this plan from a text."""
    values = {start.env.get(name, "") for _node, start in plan.starts() for name in start.secrets}
    return _build_replacer(value for value in values if len(value) >= SHORTEST)


def _build_replacer(values: Iterable[str]) -> Callable[[str], str]:
    # Longest first: of a secret that begins with another, no tail may remain.
    parts = sorted(map(escape, values), key=len, reverse=True)
    if not parts:
        return lambda text: text
    pattern = compile_pattern("|".join(parts))
    # The same few words occur in the plan of every rank.
    return lru_cache(maxsize=4096)(lambda text: pattern.sub(HIDDEN, text))
