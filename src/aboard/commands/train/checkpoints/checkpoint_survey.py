"""Asks nodes which checkpoints of a training run they have, or parts of them, and fetches parts from them."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from aboard.agent.copies.peer_files import FIRST_NODE
from aboard.agent.transfer.send_files import MOST_MARKER
from aboard.commands.sync.download import DownloadProgress, NodeDownload, OnDownload
from aboard.commands.sync.download_target import WantedFile
from aboard.commands.train.checkpoints.pass_parts import PartWish, pass_parts
from aboard.core.cluster.node import Node
from aboard.core.decoding import DecodeError
from aboard.diagnoses import AboardError
from aboard.diagnoses.files import file_fetch
from aboard.diagnoses.untrusted import escape_text
from aboard.durable_files import FileEntry
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint.checkpoint_parts import PartSelection, Slice, select_parts
from aboard.trainer.checkpoint.commit_marker import (
    NAME,
    CheckpointFile,
    CommitMarker,
    MarkerError,
    parse_marker,
    parse_marker_summary,
    read_marker_hash,
)
from aboard.transport.node_dialer import NodeDialer

# Parallel downloads: more would only share the head's downlink and memory.
AT_ONCE = 16
# In one directory of a node: for each, a request says which marker it has.
_MOST_CHECKPOINTS = 10_000
# The hash and the serial are among the first lines of a marker.
_HEAD_BYTES = 512
_SHOWN_PARTS = 3
METRICS = "metrics.jsonl"
T = TypeVar("T")
_STEP = re.compile(r"step-(\d{6,20})(?:-(\d{1,6}))?")
_KEY = re.compile(rb'\{"sha256":"([0-9a-f]{64})",\n(?:.*\n)*?"serial":(\d{1,15}),\n')


@dataclass(frozen=True, kw_only=True)
class HeldCheckpoint:
    """A checkpoint's directory on one node: the sizes of its files, and its marker's hash and serial, if it has one."""

    files: Mapping[str, int]
    marker: tuple[str, int] | None


@dataclass(frozen=True, kw_only=True)
class CheckpointOffer:
    """A checkpoint by name and marker, and the nodes that have files of it."""

    name: str
    serial: int
    key: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LackingPart:
    """A file that no reachable node has intact, and why, as far as that is known."""

    file: CheckpointFile
    node: str
    why: str


class CheckpointSurvey:
    """The checkpoints in one directory of several nodes; `unreachable` has the errors of those that did not answer."""

    def __init__(self, folder: str, dialer: NodeDialer, on_progress: OnDownload = lambda _progress: None) -> None:
        self.unreachable: dict[str, AboardError] = {}
        self.held: dict[str, dict[str, HeldCheckpoint]] = {}
        # The size of metrics.jsonl on a node, and of the copy that a node has of rank 0's.
        self.metrics: dict[str, int] = {}
        self.metrics_copies: dict[str, int] = {}
        # The nodes that parts came from.
        self.sources: set[str] = set()
        self._damaged: dict[tuple[str, str, str], AboardError] = {}
        self._folder = folder
        self._dialer = dialer
        self._on_progress = on_progress
        self._downloads: dict[str, NodeDownload] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def ask(self, nodes: Iterable[Node]) -> None:
        """Asks all of them at once; one that can't be reached does not stop the others."""
        await asyncio.gather(*(self._ask_node(node) for node in nodes if node.name not in self._downloads))

    def list_offers(self) -> list[CheckpointOffer]:
        """The checkpoints of which a marker was found, the newest first."""
        markers: dict[tuple[str, str], int] = {}
        for held in self.held.values():
            for name, each in held.items():
                if each.marker is not None:
                    markers[name, each.marker[0]] = each.marker[1]
        offers = [
            CheckpointOffer(name=name, serial=serial, key=key, nodes=tuple(self._list_holders(name, key)))
            for (name, key), serial in markers.items()
        ]
        return sorted(offers, key=lambda offer: (offer.serial, offer.name), reverse=True)

    async def read_marker(self, offer: CheckpointOffer) -> tuple[CommitMarker, bytes] | None:
        """The marker, from the first node that has it intact; None if none has."""

        async def read(node: str) -> tuple[CommitMarker, bytes]:
            size = self.held[node][offer.name].files[NAME]
            content = await self._downloads[node].read_file(f"{self._folder}/{offer.name}", NAME, size)
            marker = parse_marker(content)
            if read_marker_hash(content) != offer.key:
                raise MarkerError(f"its {NAME} was changed while it was read")
            return marker, content

        return await self._find_intact(offer, read)

    async def read_summary(self, offer: CheckpointOffer) -> tuple[CommitMarker, FileEntry] | None:
        """The marker without its slices, whatever its size, and its size and hash; None if no node has it intact."""

        async def read(node: str) -> tuple[CommitMarker, FileEntry]:
            summary = await self._downloads[node].summarize_marker(f"{self._folder}/{offer.name}", NAME)
            marker, size, sha256 = parse_marker_summary(summary)
            return marker, FileEntry(name=NAME, bytes=size, sha256=sha256)

        return await self._find_intact(offer, read)

    def list_available(self, offer: CheckpointOffer, marker: CommitMarker) -> dict[str, list[str]]:
        """The nodes that have each file in its right size, and not damaged."""
        available: dict[str, list[str]] = defaultdict(list)
        for file in marker.files:
            for node in self._list_holders(offer.name, offer.key):
                size = self.held[node][offer.name].files.get(file.name)
                if size == file.bytes and (node, offer.name, file.name) not in self._damaged:
                    available[file.name].append(node)
        return available

    async def gather(
        self, offer: CheckpointOffer, marker: CommitMarker, slices: set[Slice], target: Path
    ) -> PartSelection:
        """Fetches files with all these slices, each from any node that has it intact; `lacking` are those none has."""
        fetched: set[str] = set()
        while True:
            available = self.list_available(offer, marker)
            selection = select_parts(marker, slices, held=fetched, available=available)
            if selection.lacking or not selection.files:
                files = tuple(file for file in marker.files if file.name in fetched)
                return PartSelection(files=files, lacking=selection.lacking)
            shares = _share_out(selection.files, available)
            results = await asyncio.gather(
                *(self._fetch(node, offer.name, files, target) for node, files in shares.items())
            )
            fetched |= {name for names in results for name in names}

    async def pass_on(
        self, offer: CheckpointOffer, wishes: Mapping[str, Sequence[PartWish]], first: str
    ) -> dict[str, set[str]]:
        """Lets nodes fetch files from each other; `first` is rank 0's node, which gets metrics and trackers, too."""
        copy = max(self.metrics_copies, key=lambda node: self.metrics_copies[node], default=first)
        metrics = (first, copy) if copy != first and first not in self.metrics else None
        if not any(wishes.values()) and metrics is None:
            return {}
        downloads = {name: each for name, each in self._downloads.items() if name not in self.unreachable}
        passed = await pass_parts(downloads, self._folder, offer.name, wishes, metrics)
        for node, names in passed.items():
            before = self.held.get(node, {}).get(offer.name, HeldCheckpoint(files={}, marker=None))
            sizes = {wish.file.name: wish.file.bytes for wish in wishes.get(node, ()) if wish.file.name in names}
            marker = (offer.key, offer.serial) if NAME in names else before.marker
            held = HeldCheckpoint(files={**before.files, **sizes}, marker=marker)
            self.held.setdefault(node, {})[offer.name] = held
        return passed

    def explain(self, offer: CheckpointOffer, file: CheckpointFile, node: str) -> LackingPart:
        """Why a file is lacking that was last on this node."""
        damaged = [holder for holder, name, part in self._damaged if (name, part) == (offer.name, file.name)]
        if damaged:
            why = self._damaged[damaged[0], offer.name, file.name].seen
            return LackingPart(file=file, node=damaged[0], why=why)
        if node in self.unreachable:
            return LackingPart(file=file, node=node, why=self.unreachable[node].seen)
        for holder in self._list_holders(offer.name, offer.key):
            size = self.held[holder][offer.name].files.get(file.name)
            if size is not None:
                why = f"it has {size:,} bytes there, but {file.bytes:,} were written"
                return LackingPart(file=file, node=holder, why=why)
        return LackingPart(file=file, node=node, why="it is no longer there")

    async def leave(self, nodes: Container[str]) -> None:
        """Gives the links to these nodes back to the dialer; `close` closes the others."""
        await asyncio.gather(*(each.leave() for name, each in self._downloads.items() if name in nodes))

    async def close(self) -> None:
        await asyncio.gather(*(download.close() for download in self._downloads.values()))

    async def _ask_node(self, node: Node) -> None:
        download = self._downloads[node.name] = NodeDownload(node, self._dialer, self._on_progress)
        try:
            self.held[node.name] = await self._list_held(download)
        except AboardError as error:
            self.unreachable[node.name] = error

    async def _list_held(self, download: NodeDownload) -> dict[str, HeldCheckpoint]:
        try:
            tree = await download.list_tree(self._folder)
        except AboardError as error:
            if error.diagnosis is file_fetch.MISSING:
                return {}
            raise
        files: dict[str, dict[str, int]] = defaultdict(dict)
        for entry in tree.entries:
            folder, _, name = entry.name.partition("/")
            if entry.name == METRICS:
                self.metrics[download.node.name] = entry.bytes
            elif entry.name == f"{FIRST_NODE}/{METRICS}":
                self.metrics_copies[download.node.name] = entry.bytes
            if entry.kind == "file" and _STEP.fullmatch(folder) and name and "/" not in name:
                files[folder][name] = entry.bytes
        if len(files) > _MOST_CHECKPOINTS:
            node = download.node.name
            seen = f"{node}: {self._folder} has more than {_MOST_CHECKPOINTS:,} checkpoints"
            raise AboardError(file_fetch.TOO_MANY, seen, path=self._folder, node=node)
        return {
            name: HeldCheckpoint(files=sizes, marker=await self._read_key(download, name, sizes))
            for name, sizes in files.items()
        }

    async def _read_key(self, download: NodeDownload, name: str, sizes: Mapping[str, int]) -> tuple[str, int] | None:
        if NAME not in sizes:
            return None
        head = await download.read_file(f"{self._folder}/{name}", NAME, min(_HEAD_BYTES, sizes[NAME]))
        match = _KEY.match(head)
        return None if match is None else (match[1].decode(), int(match[2]))

    async def _find_intact(self, offer: CheckpointOffer, read: Callable[[str], Awaitable[T]]) -> T | None:
        for node in offer.nodes:
            held = self.held[node][offer.name]
            if held.marker is not None and held.files[NAME] <= MOST_MARKER:
                try:
                    return await read(node)
                except (MarkerError, DecodeError):
                    continue
                except AboardError as error:
                    self.unreachable[node] = error
        return None

    def _list_holders(self, name: str, key: str) -> list[str]:
        """The nodes with this checkpoint; one without a marker may have files, since the marker is written last."""
        return [
            node
            for node, held in self.held.items()
            if node not in self.unreachable and name in held and (held[name].marker or (key,))[0] == key
        ]

    async def _fetch(self, node: str, name: str, files: list[CheckpointFile], target: Path) -> set[str]:
        wanted = [WantedFile(name=file.name, bytes=file.bytes, sha256=file.sha256) for file in files]
        try:
            async with self._turns:
                failed = await self._downloads[node].fetch(f"{self._folder}/{name}", wanted, target)
        except AboardError as error:
            if error.diagnosis is file_fetch.TARGET:
                raise
            self.unreachable[node] = error
            return set()
        if len(failed) < len(files):
            self.sources.add(node)
        self._damaged.update({(node, name, part): why for part, why in failed.items()})
        return {file.name for file in files if file.name not in failed}


def _share_out(files: Iterable[CheckpointFile], available: Mapping[str, list[str]]) -> dict[str, list[CheckpointFile]]:
    """Each file from the node with the least to send so far."""
    shares: dict[str, list[CheckpointFile]] = {}
    load: dict[str, int] = defaultdict(int)
    for file in sorted(files, key=lambda file: -file.bytes):
        node = min(available[file.name], key=lambda name: load[name])
        shares.setdefault(node, []).append(file)
        load[node] += file.bytes
    return shares


def describe_parts(parts: Sequence[LackingPart]) -> str:
    """The first few, each with the node on which it was last."""
    texts = [f"{part.file.name}, last on {escape_text(part.node)} ({part.why})" for part in parts[:_SHOWN_PARTS]]
    more = f", and {len(parts) - _SHOWN_PARTS} more files" if len(parts) > _SHOWN_PARTS else ""
    return "; ".join(texts) + more


def add_progress(on_total: Callable[[int, int], None]) -> OnDownload:
    """Adds up the bytes of all nodes that are receiving."""
    latest: dict[str, DownloadProgress] = {}

    def take(progress: DownloadProgress) -> None:
        if progress.phase in ("receiving", "done"):
            latest[progress.node] = progress
            on_total(sum(each.done for each in latest.values()), sum(each.total for each in latest.values()))

    return take
