"""Copies of checkpoints while a run trains: introduces the copiers of the nodes, and waits for the last copy."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from secrets import token_bytes

from aboard.agent import frames
from aboard.core.plan.plan import Plan
from aboard.diagnoses import TransportError
from aboard.lazy_dataclass import dataclass
from aboard.transport.node_session import NodeSession

KEY_BYTES = 32
# A finished run waits so long for its last checkpoint's copies.
FINISH_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class CopySettings:
    """The directory of a training run's checkpoints on each node, and how fast a node may send, in bytes per second."""

    folder: str
    rate: float


class CheckpointCopies:
    """The copiers of one generation; a node without one is only left out."""

    def __init__(self, settings: CopySettings, on_uncopied: Callable[[str, str, str], None]) -> None:
        self._settings = settings
        self._on_uncopied = on_uncopied
        self._open: dict[str, NodeSession] = {}

    async def connect(self, plan: Plan, sessions: Mapping[str, NodeSession]) -> None:
        """Opens a copier on each node, with a new key, and tells each where the others listen."""
        key = token_bytes(KEY_BYTES).hex()
        peers: list[tuple[int, str, int, list[int]]] = []
        ranks = iter(range(plan.world))

        async def open_copier(number: int, session: NodeSession, own: list[int], child: str) -> None:
            with suppress(TransportError, frames.FrameError):
                endpoint = await session.open_copier(
                    key=key,
                    me=number,
                    child=child,
                    folder=self._settings.folder,
                    rate=self._settings.rate,
                )
                peers.append((number, str(endpoint.address), endpoint.port, own))
                self._open[session.node.name] = session

        await asyncio.gather(
            *(
                open_copier(number, sessions[part.node.name], [next(ranks) for _ in part.starts], part.starts[0].child)
                for number, part in enumerate(plan.parts)
            )
        )
        await asyncio.gather(*(self._introduce(session, peers) for session in self._open.values()))

    async def finish(self) -> None:
        """Waits until all copies are complete, or for a minute, and reports those that are not."""
        await asyncio.gather(*(self._await_node(session) for session in self._open.values()))

    async def _introduce(self, session: NodeSession, peers: list[tuple[int, str, int, list[int]]]) -> None:
        with suppress(TransportError):
            await session.introduce_copiers(peers)

    async def _await_node(self, session: NodeSession) -> None:
        try:
            missing = await session.wait_for_copies(FINISH_SECONDS)
        except (TransportError, frames.FrameError):
            return
        if missing:
            # The newest: older ones are of no use once it is copied.
            name = max(missing)
            why = f"{missing[name]:,} bytes are missing after {FINISH_SECONDS:.0f} s"
            self._on_uncopied(session.node.name, name, why)
