"""What the supervisor's tests share: a run on this machine, what it told, and how to hold it."""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from deadlines import slowness, until
from made_events import list_fields

from aboard.agent import process_tree
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession, SessionState
from aboard.transport.supervisor_messages import OutputChunk

HERE = Node(name="here", transport=TransportKind.LOCAL)
LONG = Lease(seconds=30.0, beat=1.0, grace=0.1)
SHORT = Lease(seconds=1.0, beat=0.1, grace=0.1)

# What training leaves around: a worker, a child in a session of its own, a double fork; all deaf to SIGTERM.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(300)"])
subprocess.Popen(["setsid", "sleep", "300"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(300)
    os._exit(0)
os.wait()
print("ready", flush=True)
time.sleep(300)
"""


class Run:
    """One run on this machine, and all that its hold tells."""

    def __init__(self, lease: Lease = LONG) -> None:
        self.id = f"test-{secrets.token_hex(6)}"
        self.key = secrets.token_hex(8)
        self.lease = lease
        self.events: list[Event] = []
        self.pieces: list[OutputChunk] = []
        self.states: list[SessionState] = []

    @property
    def place(self) -> Path:
        return Path(f"/tmp/aboard-{os.getuid()}") / self.id

    def hold(self, key: str | None = None) -> NodeSession:
        return NodeSession(
            HERE,
            NodeDialer(),
            run=self.id,
            key=key or self.key,
            lease=self.lease,
            on_event=self.events.append,
            on_output=self.pieces.append,
            on_state=lambda state, _why: self.states.append(state),
        )

    def kinds(self, child: str = "") -> list[str]:
        return [event.kind for event in self.events if event.child == child]

    def output(self, child: str, stream: str = "stdout") -> bytes:
        return b"".join(piece.data for piece in self.pieces if (piece.child, piece.stream) == (child, stream))

    def finished(self, child: str) -> bool:
        return sum(piece.end for piece in self.pieces if piece.child == child) == 2

    def alive(self) -> set[int]:
        """What carries the run's id; a zombie has no environment."""
        return process_tree.find_run_processes(self.id)

    def supervisor(self) -> int:
        child = next(list_fields(event)["pid"] for event in self.events if event.kind == "started")
        return process_tree.read_parents()[child]

    def gone(self) -> bool:
        return not self.alive() and not self.place.exists()


def held(run: Run, story: Callable[[NodeSession], Awaitable[None]]) -> None:
    """Tells a story with a held run, and ends the run afterwards."""

    async def tell() -> None:
        hold = run.hold()
        await hold.begin()
        try:
            await story(hold)
            if hold.state is SessionState.CONNECTED and "ending" not in run.kinds():
                await hold.end(grace=0.0)
            await asyncio.wait_for(hold.wait_gone(), 10 * slowness())
        finally:
            await hold.leave()

    asyncio.run(tell())


async def cut(run: Run, hold: NodeSession) -> None:
    """Kills the bridge, and waits until another is attached."""
    held = run.states.count(SessionState.CONNECTED)
    assert hold._link is not None
    os.kill(hold._link.hello["pid"], signal.SIGKILL)
    await until(lambda: run.states.count(SessionState.CONNECTED) > held)


def holding(secret: str, run: Run) -> list[Path]:
    """The supervisor's files and everybody's command lines in which the secret stands."""
    found = []
    for path in (*run.place.glob("*"), *Path("/proc").glob("[0-9]*/cmdline")):
        # A socket can't be read, and a process may end while we look.
        with suppress(OSError):
            if secret.encode() in path.read_bytes():
                found.append(path)
    return found


def python(source: str) -> tuple[str, ...]:
    return (sys.executable, "-ISc", source)
