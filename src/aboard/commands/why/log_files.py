"""`aboard why --log`: reads logs of any launcher once, in bounded memory, and diagnoses them."""

import gzip
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import cast

from aboard.config.input_files import suggest_similar_file
from aboard.diagnoses import Finding, InputError, Problem
from aboard.diagnoses.untrusted import Untrusted
from aboard.diagnoses.usage import commands
from aboard.doctor.logs.judge_log import judge_log
from aboard.doctor.logs.log_scanner import LINE_LIMIT, LogScanner
from aboard.lazy_dataclass import dataclass

STDIN = "-"
_CHUNK = 2**20
_MOST_FILES = 10_000


@dataclass(frozen=True, kw_only=True)
class LogExplanation:
    """The result for a set of logs; without findings, nothing is wrong."""

    findings: tuple[Finding, ...]
    files: tuple[str, ...]
    lines: int
    last: tuple[Untrusted, ...]


OnLogProgress = Callable[[int, int], None]


def diagnose_logs(names: Iterable[str], *, progress: OnLogProgress | None = None) -> LogExplanation:
    """Reads each file, or every file in a directory, or the standard input for `-`."""
    paths = list(_list_files(names))
    total = sum(size for _name, size in paths)
    reader = LogScanner()
    done = 0
    for name, size in paths:
        reader.begin(name)
        for chunk_end, lines in _read_chunks(name):
            for line in lines:
                reader.take(line)
            if progress is not None:
                progress(done + min(chunk_end, size), total)
        done += size
    reading = reader.reading()
    return LogExplanation(
        findings=tuple(judge_log(reading)), files=reading.files, lines=reading.lines, last=reading.last
    )


def _list_files(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Each file with its size; directories are expanded in name order. Raises all problems together."""
    problems = []
    files: list[tuple[str, int]] = []
    for name in names:
        if name == STDIN:
            files.append((name, 0))
            continue
        try:
            folder = stat.S_ISDIR(Path(name).stat().st_mode)
            inside = sorted(path for path in Path(name).rglob("*") if path.is_file()) if folder else []
            if folder and not inside:
                fix = commands.WHY_LOG.fix("empty")
                problems.append(Problem(where=name, seen="the directory contains no files", fix=fix))
            files += [(str(path), path.stat().st_size) for path in inside or [Path(name)]]
        except OSError as error:
            fix = suggest_similar_file(name) or commands.WHY_LOG.fix("look", path=name)
            problems.append(Problem(where=name, seen=f"can't be read: {error.strerror}", fix=fix))
    if len(files) > _MOST_FILES:
        seen = f"{len(files)} files were given; the maximum is {_MOST_FILES}"
        problems.append(Problem(where="aboard why", seen=seen, fix=commands.WHY_LOG.fix("fewer")))
    if problems:
        raise InputError(commands.WHY_LOG, problems)
    return iter(files)


def _read_chunks(name: str) -> Iterator[tuple[int, list[bytes]]]:
    """Yields the lines of about a megabyte at a time with the position in the file; overlong lines are cut."""
    try:
        with _open_log(name) as (file, position):
            partial_line = b""
            while data := file.read1(_CHUNK):
                lines = (partial_line + data).split(b"\n")
                partial_line = lines.pop()
                if len(partial_line) > LINE_LIMIT:
                    lines.append(partial_line[:LINE_LIMIT])
                    partial_line = b""
                yield position(), lines
            if partial_line:
                yield position(), [partial_line]
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError.of(commands.WHY_LOG, name, f"can't be read: {why}", "look", path=name) from None


@contextmanager
def _open_log(name: str) -> Iterator[tuple[BufferedReader | gzip.GzipFile, Callable[[], int]]]:
    """The file, and a function for how many bytes of it were read; for a compressed file, compressed bytes."""
    if name == STDIN:
        yield cast("BufferedReader", sys.stdin.buffer), int
        return
    with Path(name).open("rb") as file:
        if name.endswith(".gz"):
            with gzip.GzipFile(fileobj=file) as zipped:
                yield zipped, file.tell
        else:
            yield file, file.tell
