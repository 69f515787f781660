"""Attacks on the conductor's socket by a rank on the same machine, or by any other program of the user."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.events import Event
from aboard.engine.check.check_observer import NullCheckObserver
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.conductor.control_socket import serve_control
from aboard.engine.conductor_client import ask_stop
from aboard.engine.launch_run import LaunchResult, launch
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.testing.fake_supervisor import FakeNodeFaults
from aboard.testing.simulated_transport import SimulatedTransport, run_simulator

HOSTILE_REQUESTS = (
    b"null\n",
    b"[]\n",
    b'"stop"\n',
    b"3\n",
    b"{}\n",
    b'{"ask": null}\n',
    b'{"ask": ["stop"]}\n',
    b'{"ask": {"a": 1}}\n',
    b'{"ask": "why", "why": {}}\n',
    b"[" * 60_000 + b"\n",
    b'{"a":' * 10_000 + b"\n",
    b"\x00\xff\xfe\n",
    b"\n",
    b"",
    b"no newline",
    b"1" * 5_000 + b"\n",
    b"x" * 200_000 + b"\n",
)


class _QuietViewer:
    def began(self, conductor: Conductor) -> None:
        pass

    def event(self, event: Event) -> None:
        pass

    def tick(self, now: float) -> None:
        pass


class _Attacked:
    """Sends hostile requests to the conductor's socket once all ranks have started, then stops the run by it."""

    def __init__(self, attack: Callable[[RunDirectory], Awaitable[None]]) -> None:
        self._attack = attack
        self.raised: list[Any] = []

    async def launch(self, folder: Path) -> LaunchResult:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: self.raised.append(context))
        run = Runs(folder).create(datetime.now(UTC), Random(0))  # noqa: S311 - a name, no secret
        record = Record.open(run, ranks=2)
        async with AsyncExitStack() as stack:
            stack.callback(record.close)
            path = await stack.enter_async_context(run_simulator())
            tasks: list[asyncio.Task[None]] = []

            async def use_socket(conductor: Conductor) -> None:
                async with serve_control(run, conductor):
                    try:
                        await self._attack(run)
                    finally:
                        await ask_stop(run, "the attack is over", now=True)

            launched = await launch(
                LaunchSpec(
                    cluster=Cluster(nodes=(Node(name="s1", slots=2),)),
                    request=LaunchRequest(program=Program(kind=ProgramKind.SCRIPT, target="train.py")),
                ),
                record,
                check_observer=NullCheckObserver(),
                run_observer=_QuietViewer(),
                transport_for=lambda _node: SimulatedTransport(path, faults=FakeNodeFaults()),
                on_conductor=lambda conductor: tasks.append(asyncio.create_task(use_socket(conductor))),
            )
            await asyncio.gather(*tasks)
        return launched


async def _send(run: RunDirectory, request: bytes) -> bytes:
    """What the conductor answers; it closes the connection in any case."""
    reader, writer = await asyncio.open_unix_connection(run.socket)
    with suppress(ConnectionError):
        writer.write(request)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        return answer
    return b""


def test_hostile_requests_do_not_disturb_a_conductor(short_path: Path) -> None:
    """JSON of other types, deep nesting, binary and long lines are answered or dropped, and the run goes on."""

    async def attack(run: RunDirectory) -> None:
        for request in HOSTILE_REQUESTS:
            await _send(run, request)

    attacked = _Attacked(attack)
    launched = asyncio.run(attacked.launch(short_path))
    assert attacked.raised == []
    assert launched.outcome is not None
    assert launched.outcome.why.raw() == "the attack is over"


def _count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_silent_connections_leave_a_conductor_its_descriptors(short_path: Path) -> None:
    """Of hundreds of open connections the conductor keeps some, and answers a new one at once."""
    kept: list[int] = []

    async def attack(run: RunDirectory) -> None:
        before = _count_descriptors()
        held = [await asyncio.open_unix_connection(run.socket) for _ in range(300)]
        assert b"roster" in await _send(run, b'{"ask": "roster"}\n')
        kept.append(_count_descriptors() - before - len(held))
        for _reader, writer in held:
            writer.close()

    attacked = _Attacked(attack)
    asyncio.run(attacked.launch(short_path))
    assert attacked.raised == []
    assert kept[0] < 100
