"""A command of the user's own, to be typed again: unlike a value in a fix, its words may be options."""

import shlex
from collections.abc import Iterable

from aboard.diagnoses import Shell


def quote_typed_words(words: Iterable[str]) -> Shell:
    """The words as a piece of shell; only for those that were typed here, never for what came from elsewhere."""
    return Shell(shlex.join(words))
