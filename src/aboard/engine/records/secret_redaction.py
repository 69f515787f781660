"""Removes secrets from the texts of a plan, including commands: those that it names, and those of a known shape."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from aboard.core.plan.plan import Plan
from aboard.core.secrets.secret_names import HIDDEN, SHORTEST_SECRET, build_value_mask, may_hold_secret


class PlanRedactor:
    """Hides the values of secrets; the names of variables and options stay."""

    def __init__(self, values: Iterable[str]) -> None:
        self._hide_known = build_value_mask(dict.fromkeys(values, HIDDEN))
        # The same few words occur in the plan of every rank.
        self._hide = lru_cache(maxsize=4096)(self._hide_text)
        self._hide_words = lru_cache(maxsize=4096)(self._hide_argv)

    def __call__(self, text: str) -> str:
        return self._hide(text)

    def hide_words(self, words: Sequence[str]) -> list[str]:
        """The words of a command; the one after the name of a secret option is hidden, too."""
        return list(self._hide_words(tuple(words)))

    def hide_variable(self, name: str, value: str) -> str:
        if may_hold_secret(name):
            from aboard.core.secrets.secret_patterns import is_secret_value  # noqa: PLC0415 - see may_hold_secret

            if is_secret_value(name, value, typed=True):
                return HIDDEN
        return self(value)

    def _hide_text(self, text: str) -> str:
        known = self._hide_known(text)
        if not may_hold_secret(known):
            return known
        from aboard.core.secrets.secret_scrubber import mask_secrets  # noqa: PLC0415 - see may_hold_secret

        return mask_secrets(known, HIDDEN)

    def _hide_argv(self, words: tuple[str, ...]) -> tuple[str, ...]:
        known = tuple(self._hide_known(word) for word in words)
        if not may_hold_secret(" ".join(known)):
            return known
        from aboard.core.secrets.secret_scrubber import mask_words  # noqa: PLC0415 - see may_hold_secret

        return tuple(mask_words(known, HIDDEN))


def build_redactor(plan: Plan) -> PlanRedactor:
    """Builds the redactor for every secret value of this plan."""
    values = {start.env.get(name, "") for _node, start in plan.starts() for name in start.secrets}
    return PlanRedactor(value for value in values if len(value) >= SHORTEST_SECRET)
