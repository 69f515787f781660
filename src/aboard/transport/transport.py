"""The interface between Aboard and machines: a transport opens a duplex byte stream to a new agent on a node."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Protocol

from aboard.core.cluster.node import Node
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class StreamEnding:
    """How a stream ended: exit code of its program (None if unknown), its stderr, seconds until each login phase."""

    exit_code: int | None
    stderr: str = ""
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """What to write to the agent's stdin, and the marker after which its frames begin."""

    stdin: bytes
    marker: bytes


class ByteStream(Protocol):
    """Bytes both ways. `read` returns b"" at the end; `close` never raises and leaves nothing running.

    `close` first waits a moment for the other side to exit, unless `hurry` is set.
    """

    @property
    def bootstrap(self) -> Bootstrap | None:
        """What was sent already, on a stream that shares its program with others; else None."""
        ...

    async def read(self, size: int) -> bytes: ...

    def write(self, data: bytes | memoryview) -> None: ...

    async def drain(self) -> None: ...

    async def close(self, *, hurry: bool = False) -> StreamEnding: ...

    @property
    def ending(self) -> StreamEnding:
        """What is known so far; also available while the stream is open."""
        ...


OnPhase = Callable[[str], None]


class Transport(Protocol):
    """A way to reach a node. `open` raises Unreachable only for failures that precede any connection attempt."""

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream: ...

    def classify(self, ending: StreamEnding) -> tuple[UnreachableReason, str]:
        """Why a stream ended before the agent started, and the line that shows it."""
        ...

    def explain_timeout(self, ending: StreamEnding) -> tuple[str, str]:
        """The last login phase before the time ran out, and what was still missing; empty without a connection.

        Raises Unreachable if the program itself said what it was waiting for.
        """
        ...
