"""metrics.jsonl from one attempt to the next: a reader finds each step once, as the training that counts had it."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from aboard.data.store.durable import HashedFile, sync_folder

NAME = "metrics.jsonl"
_OLD = "metrics.old-{}.jsonl"


def continued(folder: Path, step: int) -> Path | None:
    """Takes out what lies behind the step that training goes on from; where it was put, None if there was nothing.

    A run that is killed has logged steps that it had not saved: they come again. So does a half line that a power cut
    left. The lines that go are in a file of their own first; then the rest is written beside and renamed.
    """
    path = folder / NAME
    if not path.exists() or all(_counts(line, step) for line in _lines(path)):
        return None
    aside = next(place for number in count(1) if not (place := folder / _OLD.format(number)).exists())
    gone, kept = HashedFile(aside), HashedFile(path)
    for line in _lines(path):
        (kept if _counts(line, step) else gone).write(line)
    gone.publish(sync=True)
    kept.publish(sync=True)
    sync_folder(folder)
    return aside


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def _counts(line: bytes, step: int) -> bool:
    """Whether it is a whole line, of a step that was not lost."""
    try:
        return line.endswith(b"\n") and int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError):
        return False
