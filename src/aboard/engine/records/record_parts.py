"""Reads a run's record as named parts of bounded size, for a bundle or for judging the run again."""

import json
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from aboard.core.text.byte_sizes import KIB, MIB
from aboard.record.rank_logs.log_reader import LogReader
from aboard.record.run_directory import RunDirectory

LOGS = "logs.jsonl"
# Of a bundle of them: its directory, its table of contents, and its version.
ROOT, MANIFEST, FORMAT = "aboard-bundle", "manifest.json", 1
PLAN, EVENTS, STACKS, FINDINGS = "plan.json", "events.jsonl", "stacks.json", "findings.json"
# Only the last lines of each rank's log and the last samples: a verdict needs no more.
LINES_PER_RANK = 400
MOST_LINES = 200_000
MOST_BYTES = 64 * MIB
_LEAST_LINES = 20
_MOST_SAMPLES = 20_000
_CONDUCTOR_BYTES = 256 * KIB


def read_record_parts(run: RunDirectory) -> dict[str, bytes]:
    """The parts as they were written, unredacted; a JSON document above the size limit is left out."""
    parts: dict[str, bytes] = {}
    for path in sorted([*run.path.glob("*.json"), *run.path.glob("*.jsonl")]):
        lines = _MOST_SAMPLES if path == run.samples else None
        data = _read_last_lines(path, lines) if path.suffix == ".jsonl" else _read_whole(path)
        if data:
            parts[path.name] = data
    parts[LOGS] = b"".join(_read_rank_logs(run))
    for path in (run.conductor_log, run.decisions):
        if tail := _read_tail(path, _CONDUCTOR_BYTES):
            parts[path.name] = tail
    return parts


def encode_json(value: Any, indent: int | None = None) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=indent) + "\n").encode("utf-8", "backslashreplace")


def _read_whole(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size <= MOST_BYTES else b""
    except OSError:
        return b""


def _read_last_lines(path: Path, most: int | None) -> bytes:
    """Complete lines only; the last ones of a long file."""
    data = _read_tail(path, MOST_BYTES)
    data = data[: data.rfind(b"\n") + 1]
    return b"".join(data.splitlines(keepends=True)[-most:]) if most else data


def _read_tail(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            return file.read(most)
    except OSError:
        return b""


def _read_rank_logs(run: RunDirectory) -> Iterator[bytes]:
    """The last lines of each rank, ordered by rank."""
    if not run.logs.is_dir():
        return
    with closing(LogReader(run.logs)) as reader:
        snapshot = reader.list_segments()
        each = min(LINES_PER_RANK, max(_LEAST_LINES, MOST_LINES // max(1, len(snapshot.ranks))))
        room = MOST_BYTES
        for rank in snapshot.ranks:
            last = [line for _entry, line in islice(reader.backward(snapshot, rank), each)]
            for line in reversed(last):
                room -= len(line.text)
                if room < 0:
                    return
                text = line.text.decode("utf-8", "replace")
                entry = {"at": line.at, "rank": rank, "node": line.node, "stream": line.stream, "text": text}
                yield encode_json(entry | {"continues": True} if line.continues else entry)
