"""The snapshots of a run on disk: the last one of each verdict, and only the last few verdicts."""

from dataclasses import replace

from aboard.core.evidence.snapshot import Snapshot
from aboard.core.evidence.verdict import is_same_verdict
from aboard.record.json_documents import DocumentWriter
from aboard.record.run_directory import RunDirectory
from aboard.record.snapshot_document import encode_snapshot

# A run that hangs for a day has thousands of snapshots with the same verdict.
MOST_SNAPSHOTS = 4


class RecentSnapshots:
    """Numbers only increase; an older snapshot may have been removed."""

    def __init__(self, run: RunDirectory, documents: DocumentWriter) -> None:
        self._run = run
        self._documents = documents
        self._snapshots: list[Snapshot] = []

    def add(self, snapshot: Snapshot) -> None:
        slim = replace(snapshot, answers={}, samples=(), last_lines={})
        if self._snapshots and _is_repeated(self._snapshots[-1], slim):
            self._remove(-1)
        self._snapshots.append(slim)
        while len(self._snapshots) > MOST_SNAPSHOTS:
            self._remove(0)
        self._documents.write(self._run.snapshot(snapshot.number), encode_snapshot(snapshot), indent=None)

    def _remove(self, index: int) -> None:
        self._documents.remove(self._run.snapshot(self._snapshots.pop(index).number))


def _is_repeated(before: Snapshot, snapshot: Snapshot) -> bool:
    """Whether it repeats the last verdict. The final snapshot is kept in addition to that of an earlier stall."""
    first, second = (each.findings[0] if each.findings else None for each in (before, snapshot))
    return before.ended == snapshot.ended and is_same_verdict(first, second)
