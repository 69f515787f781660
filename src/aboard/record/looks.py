"""The looks of a run on disk: of each verdict the last one, and only the last few verdicts."""

from dataclasses import replace

from aboard.core.look import Look
from aboard.core.verdict import same_verdict
from aboard.record.documents import Documents
from aboard.record.look_words import look_document
from aboard.record.places import RunDirectory

# A run that hangs for a day is looked at thousands of times, and says the same of itself.
MOST_LOOKS = 4


class LookLog:
    """Numbers only grow; what they name may be gone."""

    def __init__(self, run: RunDirectory, documents: Documents) -> None:
        self._run = run
        self._documents = documents
        self._kept: list[Look] = []

    def keep(self, look: Look) -> None:
        slim = replace(look, answers={}, samples=(), said={})
        if self._kept and _again(self._kept[-1], slim):
            self._remove(-1)
        self._kept.append(slim)
        while len(self._kept) > MOST_LOOKS:
            self._remove(0)
        self._documents.write(self._run.look(look.number), look_document(look), indent=None)

    def _remove(self, place: int) -> None:
        self._documents.remove(self._run.look(self._kept.pop(place).number))


def _again(before: Look, look: Look) -> bool:
    """Whether it says what the last one said. How a run ended stands beside what it had been stuck at."""
    first, second = (each.findings[0] if each.findings else None for each in (before, look))
    return before.ended == look.ended and same_verdict(first, second)
