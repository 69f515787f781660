"""What all transfers to a node share: the link, the progress, and waiting for nodes that have the same disk."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import field
from secrets import token_hex
from time import monotonic
from typing import Any, Generic, Self, TypeVar

from aboard.commands.sync.reconnecting_channel import ReconnectingChannel
from aboard.core.cluster.file_sync import OnProgress, UploadPhase, UploadProgress
from aboard.core.cluster.node import Node
from aboard.lazy_dataclass import dataclass
from aboard.transport.agent_link import AgentLink
from aboard.transport.files.file_sender import FileSender, FolderContents
from aboard.transport.node_dialer import NodeDialer

PROGRESS_SECONDS = 0.1

S = TypeVar("S", bound=FileSender)


@dataclass(kw_only=True)
class DirectoryState:
    """A directory on this node; `first` is the node that fills it if several share the disk."""

    to: str
    contents: FolderContents | None = None
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    first: "NodeTransfer[Any] | None" = None


class NodeTransfer(Generic[S]):
    """The transfer of directories to one node."""

    def __init__(
        self,
        node: Node,
        places: Sequence[DirectoryState],
        dialer: NodeDialer,
        open_channel: Callable[[AgentLink], S],
        on_progress: OnProgress,
    ) -> None:
        self.node = node
        self.same_disk_as: str | None = None
        self._directories = places
        self._sender = ReconnectingChannel(node, dialer, open_channel)
        self._on_progress = on_progress
        self._reported_at = float("-inf")

    @property
    def sent(self) -> int:
        return self._sender.transferred

    def lacks(self, place: int) -> bool:
        """Whether the node lacks files of a directory."""
        raise NotImplementedError

    async def mark(self, place: int, mark: str) -> None:
        await self._sender.run(lambda sender: sender.mark(self._directories[place].to, mark))

    async def follow_first(self, place: int, marks: Mapping[str, Self]) -> None:
        """Leaves a directory to the first node that shares the disk, if that is another one."""
        directory = self._directories[place]
        visible = await self._sender.run(lambda sender: sender.marks(directory.to))
        first = next((each for mark, each in marks.items() if mark in visible), self)
        if first is not self:
            directory.first = first
            self.same_disk_as = first.node.name

    async def wait_for_first(self, place: int) -> bool:
        """Waits until the node that fills a directory has filled it; False if that is this one."""
        first = self._directories[place].first
        if first is not None:
            self._report("waiting", now=True)
            await first._directories[place].filled.wait()  # noqa: SLF001 - of the same class
        return first is not None

    def release_followers(self) -> None:
        """After a failure: nodes that share the disk no longer wait for this one, and send the rest themselves."""
        for directory in self._directories:
            directory.filled.set()

    async def leave(self) -> None:
        """Releases the link for further use."""
        await self._sender.leave()

    async def close(self) -> None:
        await self._sender.close()

    def _count_done(self) -> tuple[int, int]:
        """The bytes that are there, and all."""
        raise NotImplementedError

    def _report(self, phase: UploadPhase, *, now: bool = False) -> None:
        if now or monotonic() - self._reported_at > PROGRESS_SECONDS:
            self._reported_at = monotonic()
            done, total = self._count_done()
            self._on_progress(UploadProgress(node=self.node.name, phase=phase, done=done, total=total))


N = TypeVar("N", bound=NodeTransfer[Any])


async def find_shared_disks(
    nodes: Sequence[N], count: int, run_all: Callable[..., Coroutine[Any, Any, list[N]]]
) -> None:
    """Nodes that see each other's marker files share a disk: only the first of them receives the files.

    On a file system that shows markers late, a node receives the files as well, which is slower but correct.
    """
    run = token_hex(8)
    for place in range(count):
        lacking = [each for each in nodes if each.lacks(place)]
        if len(lacking) < 2:  # noqa: PLR2004 - nobody to share with
            continue
        marks = {f"{run}-{place}-{number}": each for number, each in enumerate(lacking)}
        names = {each: mark for mark, each in marks.items()}
        lacking = await run_all(lacking, lambda each: each.mark(place, names[each]))  # noqa: B023 - awaited here
        await run_all(lacking, lambda each: each.follow_first(place, marks))  # noqa: B023 - awaited here
