"""Stories in rows of words, for errors whose message has nearly all of it: what was seen, where, and what to type."""

from collections.abc import Iterable

from aboard.core.story import Story
from aboard.diagnoses import Severity

# Code, title, how it shows, why, how to mend it.
Row = tuple[str, str, str, str, str]


def stories(rows: Iterable[Row]) -> tuple[Story, ...]:
    return tuple(
        Story(code=code, title=title, severity=Severity.BLOCK, shows=(shown,), why=why, mend=mend)
        for code, title, shown, why, mend in rows
    )
