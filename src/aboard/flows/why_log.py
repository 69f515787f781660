"""`aboard why --log`: logs of any launcher, read once from end to end in bounded memory."""

import gzip
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import cast

from aboard.config.read import near_file
from aboard.diagnoses import Finding, InputError, Problem, commands
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass
from aboard.verdicts.logs.judge import judge
from aboard.verdicts.logs.reader import LINE_LIMIT, Reader

STDIN = "-"
_CHUNK = 2**20
_MOST_FILES = 10_000


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What a log comes to: no findings is nothing wrong."""

    findings: tuple[Finding, ...]
    files: tuple[str, ...]
    lines: int
    last: tuple[Untrusted, ...]


Progress = Callable[[int, int], None]


def explain(names: Iterable[str], *, progress: Progress | None = None) -> Explained:
    """Reads each file, or every file in a directory, or the standard input for `-`."""
    paths = list(_files(names))
    total = sum(size for _name, size in paths)
    reader = Reader()
    done = 0
    for name, size in paths:
        reader.begin(name)
        for chunk_end, lines in _chunks(name):
            for line in lines:
                reader.take(line)
            if progress is not None:
                progress(done + min(chunk_end, size), total)
        done += size
    return explained(reader)


def explained(reader: Reader) -> Explained:
    reading = reader.reading()
    return Explained(findings=tuple(judge(reading)), files=reading.files, lines=reading.lines, last=reading.last)


def _files(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Each name with its size; directories give their files, in the order of names. All problems at once."""
    problems = []
    found: list[tuple[str, int]] = []
    for name in names:
        if name == STDIN:
            found.append((name, 0))
            continue
        try:
            folder = stat.S_ISDIR(Path(name).stat().st_mode)
            inside = sorted(path for path in Path(name).rglob("*") if path.is_file()) if folder else []
            if folder and not inside:
                fix = commands.WHY_LOG.fix("empty")
                problems.append(Problem(where=name, seen="there is no file in it", fix=fix))
            found += [(str(path), path.stat().st_size) for path in inside or [Path(name)]]
        except OSError as error:
            look = near_file(name) or commands.WHY_LOG.fix("look", path=name)
            problems.append(Problem(where=name, seen=f"can't be read: {error.strerror}", fix=look))
    if len(found) > _MOST_FILES:
        seen = f"{len(found)} files are more than {_MOST_FILES}"
        problems.append(Problem(where="aboard why", seen=seen, fix=commands.WHY_LOG.fix("fewer")))
    if problems:
        raise InputError(commands.WHY_LOG, problems)
    return iter(found)


def _chunks(name: str) -> Iterator[tuple[int, list[bytes]]]:
    """Lines of about a megabyte at a time, with how far that is in the file; a line that never ends is cut."""
    try:
        with _opened(name) as (file, position):
            held = b""
            while data := file.read1(_CHUNK):
                lines = (held + data).split(b"\n")
                held = lines.pop()
                if len(held) > LINE_LIMIT:
                    lines.append(held[:LINE_LIMIT])
                    held = b""
                yield position(), lines
            if held:
                yield position(), [held]
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        problem = Problem(where=name, seen=f"can't be read: {why}", fix=commands.WHY_LOG.fix("look", path=name))
        raise InputError(commands.WHY_LOG, [problem]) from None


@contextmanager
def _opened(name: str) -> Iterator[tuple[BufferedReader | gzip.GzipFile, Callable[[], int]]]:
    """The file, and how many of its own bytes were read, which for a packed one are fewer than come out."""
    if name == STDIN:
        yield cast("BufferedReader", sys.stdin.buffer), int
        return
    with Path(name).open("rb") as file:
        if name.endswith(".gz"):
            with gzip.GzipFile(fileobj=file) as zipped:
                yield zipped, file.tell
        else:
            yield file, file.tell
