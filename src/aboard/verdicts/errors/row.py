"""Stories in rows of words, for errors whose message has nearly all of it: what was seen, where, and what to type."""

from collections.abc import Iterable

from aboard.diagnoses import Diagnosis, Severity

# Code, title, how it shows, why, how to mend it.
Row = tuple[str, str, str, str, str]


def stories(rows: Iterable[Row]) -> tuple[Diagnosis, ...]:
    return tuple(
        Diagnosis(code=code, title=title, severity=Severity.BLOCK, symptoms=(shown,), explanation=why, remedy=mend)
        for code, title, shown, why, mend in rows
    )
