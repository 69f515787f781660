"""How commands ask a run's conductor: JSON lines over a Unix socket that only its user can access."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from aboard.core.decoding import decode, parse_json
from aboard.core.evidence.verdict import Judgement
from aboard.core.run.run_progress import RunProgress
from aboard.core.run.run_state import WHY_CHARS
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import run_records
from aboard.record.json_documents import decode_judgement
from aboard.record.run_directory import RunDirectory

# unix(7): a socket path has at most 107 bytes.
LONGEST_PATH = 100
ASK_SECONDS = 10.0
LINE_LIMIT = 64 * 1024 * 1024


async def watch_progress(run: RunDirectory) -> AsyncIterator[RunProgress]:
    """Yields the run's progress repeatedly until its conductor exits."""
    async for answer in _send_request(run, {"ask": "watch"}):
        yield decode(RunProgress, answer["roster"])


async def ask_progress(run: RunDirectory) -> RunProgress:
    """The run's current progress, from its conductor."""
    async for answer in _send_request(run, {"ask": "roster"}):
        return decode(RunProgress, answer["roster"])
    raise _make_gone_error(run)


async def ask_why(run: RunDirectory) -> Judgement:
    """Has the conductor query the nodes now, and returns its judgement."""
    async for answer in _send_request(run, {"ask": "why"}):
        return decode_judgement(answer["why"])
    raise _make_gone_error(run)


async def ask_stop(run: RunDirectory, why: str, *, now: bool) -> None:
    """Stops a run as Ctrl-C in its terminal does; with `now`, as a second Ctrl-C does."""
    async for _ in _send_request(run, {"ask": "stop", "why": why, "now": now}):
        return
    raise _make_gone_error(run)


async def _send_request(run: RunDirectory, question: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
    with ShortSocketPath(run.socket) as path:
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=LINE_LIMIT)
        except OSError:
            raise _make_gone_error(run) from None
    try:
        writer.write(json.dumps(question).encode() + b"\n")
        while line := await asyncio.wait_for(reader.readline(), ASK_SECONDS):
            answer = parse_json(line)
            if "error" in answer:
                seen = f"{run.id} has no ranks yet: {escape_text(answer['error'], WHY_CHARS)}"
                raise AboardError(run_records.RUN_SCRIPT, seen, run=run.id)
            yield answer
    except TimeoutError:
        seen = f"the conductor of {run.id} did not respond within {ASK_SECONDS:g} s"
        raise AboardError(run_records.RUN_SILENT, seen, run=run.id) from None
    finally:
        writer.close()


class ShortSocketPath:
    """A path within the socket length limit: through a descriptor of the directory where the real one is too long."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= LONGEST_PATH:
            return str(self._path)
        self._fd = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._fd}/{self._path.name}"

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _make_gone_error(run: RunDirectory) -> AboardError:
    return AboardError(
        run_records.RUN_OVER, f"the conductor of {run.id} does not respond, so the run is over", run=run.id
    )
