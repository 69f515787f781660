"""How other commands talk to a conductor: JSON lines over a Unix socket that only its user can access."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import time
from typing import Annotated, Any

from aboard.commands.launch.conduct.conductor import Conductor
from aboard.core.decoding import MaxLength, Word, decode
from aboard.core.evidence.verdict import Judgement
from aboard.core.run.run_progress import RunProgress, build_run_progress, build_stall, find_rank_of_interest
from aboard.core.run.run_state import WHY_CHARS
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted, encode_text, escape_text
from aboard.diagnoses.usage import run_records
from aboard.doctor.death.rules import report_floods
from aboard.lazy_dataclass import dataclass
from aboard.record.json_documents import decode_judgement, encode_judgement
from aboard.record.run_directory import RunDirectory

# unix(7): a socket path has at most 107 bytes.
LONGEST_PATH = 100
ASK_SECONDS = 10.0
WATCH_SECONDS = 0.25
LINE_LIMIT = 64 * 1024 * 1024
# A conductor needs its descriptors for nodes and logs.
_MOST_CLIENTS = 64


@dataclass(frozen=True, kw_only=True)
class _Request:
    ask: Word = ""
    why: Annotated[str, MaxLength(WHY_CHARS)] = "a stop was requested"
    now: bool = False


def build_live_progress(conductor: Conductor, tail: tuple[Untrusted, ...] = ()) -> RunProgress:
    """The current progress of the run."""
    stall = build_stall(conductor.stall, conductor.stall_ends, time())
    return replace(build_run_progress(conductor.plan, conductor.run, time(), tail=tail), stall=stall)


@asynccontextmanager
async def serve_control(run: RunDirectory, conductor: Conductor) -> AsyncIterator[None]:
    """Serves requests of `aboard status`, `aboard why` and `aboard stop` while the context is open."""
    async with _serve(run, lambda request: _answer_request(conductor, request)):
        yield


@asynccontextmanager
async def serve_script_control(run: RunDirectory, stop: Callable[[str], None]) -> AsyncIterator[None]:
    """The same while a script has called no launcher: it can be stopped, and there are no ranks to tell of."""

    async def answer(request: _Request) -> AsyncIterator[dict[str, Any]]:
        if request.ask == "stop":
            yield {"stopping": True}
            stop(request.why)
        else:
            yield {"error": "its script has called no launcher yet"}

    async with _serve(run, answer):
        yield


@asynccontextmanager
async def _serve(
    run: RunDirectory, answer_request: Callable[[_Request], AsyncIterator[dict[str, Any]]]
) -> AsyncIterator[None]:
    clients: dict[asyncio.StreamWriter, None] = {}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients[writer] = None
        if len(clients) > _MOST_CLIENTS:
            oldest = next(iter(clients))
            del clients[oldest]
            oldest.transport.abort()
        # Cancelled when the run ends while a client watches; Python 3.11 would print a traceback.
        with suppress(ConnectionError, ValueError, RecursionError, TimeoutError, asyncio.CancelledError):
            request = decode(_Request, json.loads(await asyncio.wait_for(reader.readline(), ASK_SECONDS)))
            async for answer in answer_request(request):
                writer.write(json.dumps(answer, default=encode_text).encode() + b"\n")
                await asyncio.wait_for(writer.drain(), ASK_SECONDS)
        clients.pop(writer, None)
        writer.close()

    with _ShortSocketPath(run.socket) as path:
        with suppress(FileNotFoundError):
            run.socket.unlink()
        server = await asyncio.start_unix_server(talk, path)
    try:
        yield
    finally:
        server.close()
        with suppress(OSError):
            run.socket.unlink()


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


async def _answer_request(conductor: Conductor, request: _Request) -> AsyncIterator[dict[str, Any]]:
    match request.ask:
        case "roster":
            yield {"roster": asdict(_build_progress_with_tail(conductor))}
        case "watch":
            while True:
                yield {"roster": asdict(_build_progress_with_tail(conductor))}
                if conductor.run.finished:
                    return
                await asyncio.sleep(WATCH_SECONDS)
        case "why":
            why = await conductor.ask_why()
            floods = tuple(report_floods(conductor.evidence()))
            yield {"why": encode_judgement(replace(why, findings=(*why.findings, *floods)))}
        case "stop":
            conductor.stop(request.why)
            if request.now:
                conductor.stop("at once")
            yield {"stopping": True}
        case other:
            yield {"error": f"can't {other}"}


def _build_progress_with_tail(conductor: Conductor) -> RunProgress:
    """Includes the last lines of the rank of interest, for clients that don't see the output of all ranks."""
    interest = find_rank_of_interest(conductor.run)
    return build_live_progress(conductor, conductor.tail(interest) if interest is not None else ())


async def _send_request(run: RunDirectory, question: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
    with _ShortSocketPath(run.socket) as path:
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=LINE_LIMIT)
        except OSError:
            raise _make_gone_error(run) from None
    try:
        writer.write(json.dumps(question).encode() + b"\n")
        while line := await asyncio.wait_for(reader.readline(), ASK_SECONDS):
            answer = json.loads(line)
            if "error" in answer:
                seen = f"{run.id} has no ranks yet: {escape_text(answer['error'], WHY_CHARS)}"
                raise AboardError(run_records.RUN_SCRIPT, seen, run=run.id)
            yield answer
    except TimeoutError:
        seen = f"the conductor of {run.id} did not respond within {ASK_SECONDS:g} s"
        raise AboardError(run_records.RUN_SILENT, seen, run=run.id) from None
    finally:
        writer.close()


class _ShortSocketPath:
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
