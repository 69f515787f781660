"""The one seam to machines: a wire opens a duplex byte stream to a fresh agent on a node."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Protocol

from aboard.core.cluster.node import Node
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class StreamEnding:
    """What can be said of a stream that is over: exit code, and what was written beside the stream."""

    code: int | None
    said: str = ""
    phases: Mapping[str, float] = field(default_factory=dict)


class ByteStream(Protocol):
    """Bytes both ways. `read` returns b"" at the end; `close` never raises and leaves nothing running.

    It lets the far end leave by itself for a moment, unless it is told to hurry.
    """

    async def read(self, size: int) -> bytes: ...

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    async def close(self, *, hurry: bool = False) -> StreamEnding: ...

    @property
    def ending(self) -> StreamEnding:
        """What is known so far, while the stream is open too."""
        ...


OnPhase = Callable[[str], None]


class Transport(Protocol):
    """A way to reach a node. `open` raises Unreachable only for what fails before anything is dialled."""

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream: ...
