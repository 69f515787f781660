"""How a conductor answers other commands: JSON lines over a Unix socket that only its user can access."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from time import time
from typing import Annotated, Any

from aboard.core.decoding import MaxLength, Word, decode, parse_json
from aboard.core.run.run_progress import RunProgress, build_run_progress, build_stall, find_rank_of_interest
from aboard.core.run.run_state import WHY_CHARS
from aboard.diagnoses.untrusted import Untrusted, encode_text
from aboard.doctor.collective.live_transport import add_transport
from aboard.doctor.death.rules import report_floods
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.conductor_client import ASK_SECONDS, ShortSocketPath
from aboard.lazy_dataclass import dataclass
from aboard.record.json_documents import encode_judgement
from aboard.record.run_directory import RunDirectory

WATCH_SECONDS = 0.25
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
        with suppress(ConnectionError, ValueError, TimeoutError, asyncio.CancelledError):
            request = decode(_Request, parse_json(await asyncio.wait_for(reader.readline(), ASK_SECONDS)))
            async for answer in answer_request(request):
                writer.write(json.dumps(answer, default=encode_text).encode() + b"\n")
                await asyncio.wait_for(writer.drain(), ASK_SECONDS)
        clients.pop(writer, None)
        writer.close()

    with ShortSocketPath(run.socket) as path:
        with suppress(FileNotFoundError):
            run.socket.unlink()
        server = await asyncio.start_unix_server(talk, path)
    try:
        yield
    finally:
        server.close()
        with suppress(OSError):
            run.socket.unlink()


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
            why = add_transport(await conductor.ask_why(), conductor.evidence())
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
