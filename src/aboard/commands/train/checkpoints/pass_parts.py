"""Parts of a checkpoint go from node to node before a run resumes: the head only names them, with their hashes."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from secrets import token_bytes
from typing import Annotated

from aboard.agent import frames
from aboard.commands.sync.download import NodeDownload
from aboard.core.decoding import DecodeError, IpAddress, MaxLength, PortNumber, decode
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted
from aboard.durable_files import FileEntry
from aboard.lazy_dataclass import dataclass

KEY_BYTES = 32
STATUS_SECONDS = 5.0
# Without a byte that a node hashes or receives, the head fetches the rest itself. A slow disk may take long to sync.
STALL_SECONDS = 180.0
_Text = Annotated[Untrusted, MaxLength(300)]


@dataclass(frozen=True, kw_only=True)
class PartWish:
    """A file that a node wants, and the nodes that have it."""

    file: FileEntry
    sources: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class _OpenReply:
    address: IpAddress
    port: PortNumber


@dataclass(frozen=True, kw_only=True)
class _StatusReply:
    left: int
    moved: int
    lacking: Annotated[tuple[tuple[_Text, _Text, _Text], ...], MaxLength(100_000)]


async def pass_parts(
    downloads: Mapping[str, NodeDownload],
    folder: str,
    checkpoint: str,
    wishes: Mapping[str, Sequence[PartWish]],
    metrics: tuple[str, str] | None,
    patience: float = STALL_SECONDS,
) -> dict[str, set[str]]:
    """Returns the names of the files that each node got; whatever failed, or no longer moves, is left to the head.

    `metrics` are two nodes: rank 0's, which lacks metrics and trackers, and one with a copy of them.
    """
    wanting = {*wishes, *(metrics[:1] if metrics else ())}
    sources = {name for each in wishes.values() for wish in each for name in wish.sources} | {*(metrics or ())[1:]}
    names = sorted(wanting | sources)
    copiers = {
        name: _NodeCopier(downloads[name], number, folder) for number, name in enumerate(names) if name in downloads
    }
    key = token_bytes(KEY_BYTES).hex()
    try:
        await asyncio.gather(*(copier.start(key) for copier in copiers.values()))
        peers = [copier.endpoint for copier in copiers.values() if copier.endpoint is not None]
        numbers = {name: copier.number for name, copier in copiers.items() if copier.endpoint is not None}

        async def fetch(name: str) -> set[str]:
            beside = numbers.get(metrics[1]) if metrics is not None and metrics[0] == name else None
            return await copiers[name].fetch(checkpoint, wishes.get(name, ()), peers, numbers, beside, patience)

        ready = [name for name in wanting if name in numbers]
        return dict(zip(ready, await asyncio.gather(*map(fetch, ready)), strict=True))
    finally:
        await asyncio.gather(*(copier.leave() for copier in copiers.values()))


class _NodeCopier:
    """The copier of one node, a child of its agent; it exits after `leave`, or with the link."""

    def __init__(self, download: NodeDownload, number: int, folder: str) -> None:
        self.number = number
        # Number, host, port and (here none) ranks.
        self.endpoint: tuple[int, str, int, list[int]] | None = None
        self._download = download
        self._folder = folder

    async def start(self, key: str) -> None:
        with suppress(AboardError, DecodeError):
            address = await self._download.find_address()
            opened = decode(_OpenReply, await self._ask("open", key=key, me=self.number, address=address, rate=0))
            self.endpoint = (self.number, str(opened.address), opened.port, [])

    async def fetch(
        self,
        checkpoint: str,
        wishes: Sequence[PartWish],
        peers: Sequence[object],
        numbers: Mapping[str, int],
        beside: int | None,
        patience: float,
    ) -> set[str]:
        """Fetches these files, each from any node that has it, in this order; returns those that are complete."""
        failed: set[str] = set()
        try:
            await self._ask("peers", peers=peers)
            rows = [
                [
                    checkpoint,
                    wish.file.name,
                    wish.file.bytes,
                    wish.file.sha256,
                    [numbers[name] for name in wish.sources],
                ]
                for wish in wishes
                if not numbers.keys().isdisjoint(wish.sources)
                for wish in [PartWish(file=wish.file, sources=[name for name in wish.sources if name in numbers])]
            ]
            await self._ask("fetch", files=rows, **({} if beside is None else {"beside": beside}))
            before, since = (1, -1), time.monotonic()
            while before[0]:
                status = decode(
                    _StatusReply, await self._ask("status", seconds=min(STATUS_SECONDS, patience)), strict=True
                )
                failed |= {name.raw() for _checkpoint, name, _why in status.lacking}
                if (status.left, status.moved) != before:
                    before, since = (status.left, status.moved), time.monotonic()
                elif time.monotonic() > since + patience:
                    return {str(row[1]) for row in rows[: max(0, len(rows) - status.left)]} - failed
        except (AboardError, DecodeError):
            return set()
        return {str(row[1]) for row in rows} - failed

    async def leave(self) -> None:
        with suppress(AboardError):
            await self._ask("leave")

    async def _ask(self, do: str, **fields: object) -> frames.Message:
        return await self._download.ask_copier(self._folder, do, **fields)
