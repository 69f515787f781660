"""`aboard sync`: copies trees of files to every node; a node that fails is named, and the others continue."""

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from aboard.agent.transfer.root_folder import TREE_SEPARATOR
from aboard.commands.sync.file_packs import FilePacks
from aboard.commands.sync.node_transfer import find_shared_disks
from aboard.commands.sync.sync_directory import SyncDirectory
from aboard.commands.sync.sync_files import NodeSyncResult, sync_files
from aboard.commands.sync.trees.node_trees import NodeTrees
from aboard.commands.sync.trees.source_tree import SourceTree
from aboard.commands.sync.trees.tree_difference import SMALL_BYTES
from aboard.content_hash_cache import ContentHash, ContentHashCache
from aboard.core.cluster.file_sync import NodeTreeResult, OnProgress, UploadProgress
from aboard.core.cluster.node import Node
from aboard.diagnoses import AboardError, Finding
from aboard.durable_files import FileEntry
from aboard.transport.node_dialer import NodeDialer

# Nodes that connect later than this after the first one are synced on their own: nobody waits for them.
LATE_SECONDS = 3.0
# So much is hashed before it is known whether a node lacks it: at most a second of work for nothing.
EARLY_BYTES = 1024**3

OnFinding = Callable[[Finding], None]


class TreeSync:
    """One sync of trees to many nodes; the links go back to the dialer."""

    def __init__(
        self,
        trees: Sequence[SourceTree],
        dialer: NodeDialer,
        *,
        hashes: Path,
        delete: bool = False,
        dry: bool = False,
        on_progress: OnProgress = lambda _progress: None,
        on_finding: OnFinding = lambda _finding: None,
    ) -> None:
        self._trees = trees
        self._packs = {place: FilePacks(tree) for place, tree in enumerate(trees)}
        self._dialer = dialer
        self._hashes = hashes
        self._delete = delete
        self._dry = dry
        self._on_progress = on_progress
        self._on_finding = on_finding
        self._errors: dict[str, AboardError] = {}
        self._large: dict[str, NodeSyncResult] = {}
        self._sums: dict[Path, ContentHash] = {}
        self._seconds: dict[str, float] = {}
        self._began = monotonic()

    async def run(self, nodes: Sequence[Node]) -> dict[str, NodeTreeResult]:
        self._hashing = asyncio.create_task(asyncio.to_thread(self._hash_early))
        everyone = [
            NodeTrees(node, self._packs, self._trees, self._dialer, self._on_progress, delete=self._delete)
            for node in nodes
        ]
        try:
            await self._survey_and_send(everyone)
        finally:
            await asyncio.gather(*(each.close() for each in everyone))
            # At most a second of hashing for nothing; its error matters only to a sync that needed it.
            await asyncio.wait([self._hashing])
            self._hashing.exception()
        return {each.node.name: self._build_result(each) for each in everyone}

    async def _survey_and_send(self, everyone: Sequence[NodeTrees]) -> None:
        """Sends to all nodes that are ready; a node that connects late doesn't delay them."""
        surveys = {asyncio.create_task(self._guard(each, each.survey())): each for each in everyone}
        sends: list[asyncio.Task[None]] = []
        try:
            pending = set(surveys)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if pending:
                    more, pending = await asyncio.wait(pending, timeout=LATE_SECONDS)
                    done |= more
                ready = [surveys[task] for task in surveys if task in done and task.result()]
                if not self._dry:
                    sends.append(asyncio.create_task(self._send(ready)))
            await asyncio.gather(*sends)
        finally:
            for task in (*surveys, *sends):
                task.cancel()
            await asyncio.wait((*surveys, *sends))

    async def _send(self, ready: list[NodeTrees]) -> None:
        await find_shared_disks(ready, len(self._trees), self._run_all)
        ready = await self._run_all(ready, NodeTrees.send_small)
        ready = await self._send_large(ready)
        ready = await self._run_all(ready, NodeTrees.finish)
        for each in ready:
            self._seconds[each.node.name] = monotonic() - self._began
        await asyncio.gather(*(each.leave() for each in ready))

    async def _send_large(self, ready: list[NodeTrees]) -> list[NodeTrees]:
        """Sends large files one by one, resumable; only those of data may be passed on by other nodes."""
        directories: list[SyncDirectory] = []
        for place, tree in enumerate(self._trees):
            paths = sorted({path for each in ready for path in each.differences[place].large})
            if paths:
                await self._hashing
                directories += await asyncio.to_thread(self._build_directories, tree, paths)
        if not directories:
            return ready
        # With data, nodes that have the files pass them on to the others.
        everyone = any(directory.peers for directory in directories)
        members = {each.node.name: each for each in ready if everyone or any(part.large for part in each.differences)}
        await asyncio.gather(*(each.leave() for each in members.values()))
        failed: dict[str, AboardError] = {}

        def report(progress: UploadProgress) -> None:
            each = members[progress.node]
            if progress.phase != "looking":
                self._on_progress(replace(progress, phase="sending", done=each.sent + progress.done, total=each.total))

        nodes = [each.node for each in members.values()]
        result = await sync_files(nodes, directories, self._dialer, on_progress=report, on_failed=failed.__setitem__)
        self._large |= result.nodes
        for finding in result.findings:
            self._on_finding(finding)
        self._errors |= failed
        return [each for each in ready if each.node.name not in failed]

    def _hash_early(self) -> None:
        """Hashes large files while the nodes are dialled; if there are too many, only those that a node lacks."""
        paths = [
            tree.root / path for tree in self._trees for path, status in tree.files.items() if status.size > SMALL_BYTES
        ]
        if sum(status.size for tree in self._trees for status in tree.files.values()) <= EARLY_BYTES:
            self._hash_files(paths)

    def _hash_files(self, paths: Sequence[Path]) -> list[ContentHash]:
        new = [path for path in paths if path not in self._sums]
        contents = ContentHashCache(self._hashes).of(new, threads=len(os.sched_getaffinity(0)))
        self._sums.update(zip(new, contents, strict=True))
        return [self._sums[path] for path in paths]

    def _build_directories(self, tree: SourceTree, paths: Sequence[str]) -> list[SyncDirectory]:
        files: dict[str, list[FileEntry]] = defaultdict(list)
        for path, content in zip(paths, self._hash_files([tree.root / path for path in paths]), strict=True):
            folder, _, name = path.rpartition("/")
            files[folder].append(FileEntry(name=name, bytes=content.bytes, sha256=content.sha256))
        return [
            SyncDirectory(
                folder=tree.root / folder,
                files=tuple(entries),
                to=f"{tree.to}{TREE_SEPARATOR}{folder}" if folder else tree.to,
                peers=tree.is_data,
            )
            for folder, entries in files.items()
        ]

    async def _run_all(
        self, ready: Sequence[NodeTrees], work: Callable[[NodeTrees], Coroutine[Any, Any, None]]
    ) -> list[NodeTrees]:
        succeeded = await asyncio.gather(*(self._guard(each, work(each)) for each in ready))
        return [each for each, success in zip(ready, succeeded, strict=True) if success]

    async def _guard(self, each: NodeTrees, work: Coroutine[Any, Any, None]) -> bool:
        """Runs the work of one node; its failure is noted and stops no other node."""
        try:
            await work
        except AboardError as error:
            self._errors[each.node.name] = error
            each.release_followers()
            return False
        return True

    def _build_result(self, each: NodeTrees) -> NodeTreeResult:
        name = each.node.name
        large = self._large.get(name)
        differences = each.differences
        whole = sum(tree.bytes for tree in self._trees)
        return NodeTreeResult(
            sent=each.total if self._dry else each.sent + (large.sent if large else 0),
            from_peers=large.from_peers if large else 0,
            had=whole - each.total,
            files=sum(len(difference.small) + len(difference.large) for difference in differences),
            deleted=sum(len(difference.removed) for difference in differences) if self._dry else each.deleted,
            changed=any(not difference.is_empty for difference in differences),
            seconds=self._seconds.get(name, monotonic() - self._began),
            same_disk_as=each.same_disk_as,
            error=self._errors.get(name),
        )


async def sync_trees(
    nodes: Sequence[Node], trees: Sequence[SourceTree], dialer: NodeDialer, *, hashes: Path, **options: Any
) -> Mapping[str, NodeTreeResult]:
    """Makes the trees of every node equal to those here; with `delete`, without files that are missing here.

    `hashes` is the cache of hashes of large files. With `dry`, the result says what would be sent and deleted. These
    and the other `options` are those of `TreeSync`.
    """
    return await TreeSync(trees, dialer, hashes=hashes, **options).run(nodes) if nodes else {}
