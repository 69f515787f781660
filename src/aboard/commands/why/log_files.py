"""`aboard why --log`: reads logs of any launcher once, in bounded memory, and diagnoses them."""

import gzip
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import cast

from aboard.config.input_files import suggest_similar_file
from aboard.diagnoses import Finding, InputError, Problem
from aboard.diagnoses.untrusted import Untrusted
from aboard.diagnoses.usage import commands
from aboard.doctor.logs.judge_log import find_outcome, judge_log
from aboard.doctor.logs.log_scanner import LINE_LIMIT, LogScanner
from aboard.doctor.logs.nccl_log import describe_network
from aboard.doctor.reports.evidence_files import MOST_BYTES, EvidenceFiles
from aboard.doctor.reports.recognize import HEAD_BYTES, find_unread_format, recognize_format
from aboard.lazy_dataclass import dataclass

STDIN = "-"
_CHUNK = 2**20
_MOST_FILES = 10_000
# Lines of a file that show whether it is text.
_LOOKED_AT = 100
_REPORTED = 3


@dataclass(frozen=True, kw_only=True)
class LogExplanation:
    """The result for a set of logs.

    `outcome` is what they come to: verdict, trouble (that Aboard doesn't recognize), completed, progress (up to the
    end), healthy (a report that says so), or unknown (whether the run went on). `before` is the lines before the
    trouble, `unknown` the unrecognized lines worth reporting, each behind those before it. `kinds` is what each file
    is, `unread` what was not judged, and why; `nccl` is what NCCL says of the run: its version, ranks and
    nodes, and how they are connected.
    """

    findings: tuple[Finding, ...]
    files: tuple[str, ...]
    lines: int
    last: tuple[Untrusted, ...]
    outcome: str
    before: tuple[Untrusted, ...] = ()
    unknown: tuple[Untrusted, ...] = ()
    nccl: tuple[Untrusted, ...] = ()
    kinds: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


OnLogProgress = Callable[[int, int], None]
_File = BufferedReader | gzip.GzipFile


def diagnose_logs(names: Iterable[str], *, progress: OnLogProgress | None = None) -> LogExplanation:
    """Reads each file, or every file in a directory, or the standard input for `-`."""
    paths = list(_list_files(names))
    total = sum(size for _name, size in paths)
    reader = LogScanner()
    evidence = EvidenceFiles(reader)
    done = 0
    unread: list[Problem] = []
    for number, (name, size) in enumerate(paths, start=1):
        reader.begin(name)
        nothing = ""
        with _open_log(name) as (file, position):
            for nothing in _read_file(name, number, file, reader, evidence):  # noqa: B007 - the last one counts
                if progress is not None:
                    progress(done + min(position(), size), total)
        done += size
        if nothing:
            unread.append(Problem(where=name, seen=nothing, fix=commands.WHY_LOG.fix("look", path=name)))
    if len(unread) == len(paths):
        raise InputError(commands.WHY_LOG, unread)
    reading = evidence.add_to(reader.reading())
    findings = tuple(judge_log(reading))
    return LogExplanation(
        findings=findings,
        files=reading.files,
        lines=reading.lines,
        last=reading.last,
        outcome=find_outcome(findings, reading),
        before=reading.troubles[0].before if reading.troubles else (),
        unknown=tuple(line for each in reading.troubles[:_REPORTED] for line in (*each.before, each.text)),
        kinds=reading.kinds,
        nccl=tuple(map(Untrusted, describe_network(reading.nccl))),
        unread=tuple(f"{problem.where} {problem.seen}" for problem in unread),
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


def _read_file(name: str, number: int, file: _File, reader: LogScanner, evidence: EvidenceFiles) -> Iterator[str]:
    """Feeds a report or the lines of a log to their judges; yields why there is nothing to judge so far, or ""."""
    head = file.peek(HEAD_BYTES)[:HEAD_BYTES]
    kind = recognize_format(head)
    data = file.read(MOST_BYTES + 1) if kind.whole else b""
    unread = evidence.take(kind, head, data, number, name)
    if unread is None and (words := find_unread_format(head)):
        unread = f"is {words}"
    if unread is not None:
        yield unread
        return
    nothing = "is empty"
    yield nothing
    for lines in _split_lines(data, file):
        if nothing and any(b"\0" in line for line in lines[:_LOOKED_AT]):
            yield "is not text"
            return
        nothing = nothing and ("" if any(line.strip() for line in lines) else nothing)
        for line in lines:
            reader.take(line)
        yield nothing


def _split_lines(data: bytes, file: _File) -> Iterator[list[bytes]]:
    """Yields the lines of about a megabyte at a time; overlong lines are cut."""
    partial_line = b""
    while data or (data := file.read1(_CHUNK)):
        lines = (partial_line + data).split(b"\n")
        data, partial_line = b"", lines.pop()
        if len(partial_line) > LINE_LIMIT:
            lines.append(partial_line[:LINE_LIMIT])
            partial_line = b""
        yield lines
    if partial_line:
        yield [partial_line]


@contextmanager
def _open_log(name: str) -> Iterator[tuple[_File, Callable[[], int]]]:
    """The file, and a function for how many bytes of it were read; for a compressed file, compressed bytes."""
    if name == STDIN:
        # One that waits for as many bytes as recognize a format.
        yield BufferedReader(cast("RawIOBase", sys.stdin.buffer)), int
        return
    try:
        with Path(name).open("rb") as file:
            if name.endswith(".gz"):
                with gzip.GzipFile(fileobj=file) as zipped:
                    yield zipped, file.tell
            else:
                yield file, file.tell
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError.of(commands.WHY_LOG, name, f"can't be read: {why}", "look", path=name) from None
