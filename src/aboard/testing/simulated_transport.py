"""The simulated transport: fake agents in another process, over real frames, at sizes that no machine holds."""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from aboard.core.cluster.node import Node
from aboard.diagnoses import Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.testing.fake_supervisor import FakeNodeFaults
from aboard.transport.subprocess_stream import use_pidfds
from aboard.transport.transport import ByteStream, OnPhase, StreamEnding

READY_SECONDS = 20.0
LAST_CALL = 5.0
NO_FAULTS = FakeNodeFaults()


class SimulatedTransport:
    """Connects to the simulator, which runs one fake agent per connection; `faults` apply to its supervisor."""

    def __init__(self, path: Path, behaviour: str = "answer", faults: FakeNodeFaults = NO_FAULTS) -> None:
        self._path = path
        self._behaviour = behaviour
        self._faults = faults

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        on_phase("connecting")
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
        except OSError as error:
            raise Unreachable(UnreachableReason.REFUSED, f"{node.name}: no simulator at {self._path}") from error
        preface = {"node": node.name, "behaviour": self._behaviour, "faults": asdict(self._faults)}
        writer.write(json.dumps(preface).encode() + b"\n")
        return SocketStream(reader, writer)

    def classify(self, ending: StreamEnding) -> tuple[UnreachableReason, str]:
        return UnreachableReason.LOST, "the simulator closed the connection"

    def explain_timeout(self, ending: StreamEnding) -> tuple[str, str]:
        return "", ""


class SocketStream:
    """A stream over a connected socket."""

    bootstrap = None

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, size: int) -> bytes:
        with suppress(ConnectionError):
            return await self._reader.read(size)
        return b""

    def write(self, data: bytes | memoryview) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        with suppress(ConnectionError):
            await self._writer.drain()

    async def close(self, *, hurry: bool = False) -> StreamEnding:
        # Unsent data is dropped: an agent that reads nothing must not block us.
        self._writer.transport.abort()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
        return self.ending

    @property
    def ending(self) -> StreamEnding:
        return StreamEnding(exit_code=None)


@asynccontextmanager
async def run_simulator() -> AsyncIterator[Path]:
    """Runs the simulator in a process of its own, which exits when this one does, however that ends."""
    with tempfile.TemporaryDirectory(prefix="aboard-simulator-") as folder:
        path = Path(folder) / "agents.sock"
        use_pidfds()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "aboard.testing.simulator", str(path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None  # noqa: S101 - a pipe, see above
        assert process.stdout is not None  # noqa: S101 - a pipe, see above
        try:
            await asyncio.wait_for(process.stdout.readline(), READY_SECONDS)
            yield path
        finally:
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), LAST_CALL)
            except (TimeoutError, asyncio.CancelledError):
                process.kill()
                raise
