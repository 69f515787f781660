"""The one seam to machines: a wire opens a duplex byte stream to a fresh agent on a node."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Protocol

from aboard.core.node import Node
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What can be said of a stream that is over: exit code, and what was written beside the stream."""

    code: int | None
    said: str = ""
    phases: Mapping[str, float] = field(default_factory=dict)


class Stream(Protocol):
    """Bytes both ways. `read` returns b"" at the end; `close` never raises and leaves nothing running.

    It lets the far end leave by itself for a moment, unless it is told to hurry.
    """

    async def read(self, size: int) -> bytes: ...

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    async def close(self, *, hurry: bool = False) -> Ending: ...

    @property
    def ending(self) -> Ending:
        """What is known so far, while the stream is open too."""
        ...


OnPhase = Callable[[str], None]


class Wire(Protocol):
    """A way to reach a node. `open` raises Unreachable only for what fails before anything is dialled."""

    async def open(self, node: Node, on_phase: OnPhase) -> Stream: ...
