"""The tokenizer and template settings that rules need to know."""

from functools import cached_property
from re import Pattern, compile as compile_pattern, escape

from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class EncodingSettings:
    """Tokenizer and template settings; without a tokenizer, rules over tokens stay silent.

    `stops` are the tokens that end an answer, `bos` is the one that begins a sequence, `specials` are the control
    tokens as text. `marked` says whether the template marks the assistant's tokens; None if there is no template.
    """

    tokenizer: str | None = None
    bos: int | None = None
    stops: frozenset[int] = frozenset()
    stop_names: tuple[Untrusted, ...] = ()
    specials: tuple[str, ...] = ()
    max_length: int | None = None
    loss_on: str = "answers"
    marked: bool | None = None

    @cached_property
    def special_starts(self) -> frozenset[str]:
        return frozenset(word[0] for word in self.specials if word.strip())

    @cached_property
    def special_text(self) -> Pattern[str] | None:
        """Matches any control token in a text; the longest first, so that the full token is reported."""
        words = sorted((word for word in self.specials if word.strip()), key=len, reverse=True)
        return compile_pattern("|".join(map(escape, words))) if words else None
