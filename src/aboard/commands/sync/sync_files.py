"""Copies the same files to every node, verified by SHA-256; files that a node already has are not sent."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from aboard.commands.sync.node_transfer import find_shared_disks
from aboard.commands.sync.node_upload import NodeUpload
from aboard.commands.sync.peers.peer_findings import PeerReport
from aboard.commands.sync.sync_directory import SyncDirectory
from aboard.core.cluster.file_sync import OnProgress, UploadProgress
from aboard.core.cluster.file_transfer_errors import build_hash_error, build_no_room_error, build_permission_error
from aboard.core.cluster.node import Node
from aboard.diagnoses import AboardError, join_fixes
from aboard.diagnoses.diagnosis import Finding
from aboard.lazy_dataclass import dataclass
from aboard.transport.node_dialer import NodeDialer

__all__ = ["NodeSyncResult", "SyncDirectory", "SyncResult", "UploadProgress", "sync_files"]

OnFailed = Callable[[str, AboardError], None]
"""Called with a node's name and the reason why it is left out."""

# Parallel uploads: more would only share the head's uplink and memory.
AT_ONCE = 16
# Kept free on a node's disk: the run writes there too.
SPARE = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class NodeSyncResult:
    """The bytes sent to, fetched by and already on one node; `extra` are its files that the head lacks, which stay."""

    sent: int
    had: int
    same_disk_as: str | None
    extra: tuple[str, ...]
    from_peers: int = 0


@dataclass(frozen=True, kw_only=True)
class SyncResult:
    """The result of a sync in which every node got every file; anything else raises."""

    nodes: Mapping[str, NodeSyncResult]
    seconds: float
    findings: tuple[Finding, ...] = ()

    @property
    def sent(self) -> int:
        return sum(each.sent for each in self.nodes.values())

    @property
    def from_peers(self) -> int:
        return sum(each.from_peers for each in self.nodes.values())


async def sync_files(
    nodes: Iterable[Node],
    directories: Sequence[SyncDirectory],
    dialer: NodeDialer,
    *,
    on_progress: OnProgress = lambda _progress: None,
    on_failed: OnFailed | None = None,
) -> SyncResult:
    """Checks all nodes before anything is sent, and reports their problems in one error.

    With `on_failed`, a node that fails is reported there and left out of the result; the others continue. The links
    go back to the dialer for the launch that follows; without one, the caller closes it.
    """
    began = monotonic()
    turns = asyncio.Semaphore(AT_ONCE)
    everyone = uploads = [NodeUpload(node, directories, dialer, turns, on_progress) for node in nodes]
    run = partial(_run_all, on_failed=on_failed)
    try:
        uploads = await run(uploads, NodeUpload.survey)
        uploads = await run(uploads, _check_problems)
        await find_shared_disks(uploads, len(directories), run)
        report = await _distribute(uploads, directories)
        uploads = await run(uploads, NodeUpload.deliver, first_ends_all=on_failed is None)
        _verify_hashes(uploads, directories)
        await asyncio.gather(*(upload.leave() for upload in uploads))
    finally:
        await asyncio.gather(*(upload.close() for upload in everyone))
    results = {
        upload.node.name: NodeSyncResult(
            sent=upload.sent,
            had=upload.had,
            same_disk_as=upload.same_disk_as,
            extra=upload.extra,
            from_peers=report.fetched.get(upload.node.name, 0),
        )
        for upload in uploads
    }
    return SyncResult(nodes=results, seconds=monotonic() - began, findings=report.findings)


async def _distribute(uploads: Sequence[NodeUpload], directories: Sequence[SyncDirectory]) -> PeerReport:
    if not any(directory.peers for directory in directories):
        return PeerReport()
    # Imported here: it needs the network checks, which take 50 ms that code doesn't need.
    from aboard.commands.sync.peers.peer_distribution import distribute_large_files  # noqa: PLC0415

    return await distribute_large_files(uploads, directories)


async def _run_all(
    uploads: Sequence[NodeUpload],
    work: Callable[[NodeUpload], Coroutine[Any, Any, None]],
    *,
    on_failed: OnFailed | None,
    first_ends_all: bool = False,
) -> list[NodeUpload]:
    """Runs all in parallel and returns those that succeed; without `on_failed`, raises the errors of all as one."""
    tasks = {asyncio.create_task(work(upload)): upload for upload in uploads}
    if not tasks:
        return []
    for task, upload in tasks.items():
        task.add_done_callback(partial(_release_followers, upload))
    try:
        until = asyncio.FIRST_EXCEPTION if first_ends_all else asyncio.ALL_COMPLETED
        await asyncio.wait(tasks, return_when=until)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    errors = {
        upload: error
        for task, upload in tasks.items()
        if not task.cancelled() and (error := task.exception()) is not None
    }
    for error in errors.values():
        if not isinstance(error, AboardError):
            raise error
    problems = {upload.node.name: error for upload, error in errors.items() if isinstance(error, AboardError)}
    if on_failed is None:
        _raise_problems(list(problems.values()))
    else:
        for name, problem in problems.items():
            on_failed(name, problem)
    return [upload for upload in uploads if upload not in errors]


def _release_followers(upload: NodeUpload, task: "asyncio.Task[None]") -> None:
    if task.cancelled() or task.exception() is not None:
        upload.release_followers()


async def _check_problems(upload: NodeUpload) -> None:
    _raise_problems(_find_problems(upload))


def _raise_problems(problems: Sequence[AboardError]) -> None:
    """Raises one error for all problems, with the code of the first."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        seen = "\n".join(dict.fromkeys(each.seen for each in problems))
        raise AboardError(problems[0].diagnosis, seen, fix=join_fixes(*dict.fromkeys(each.fix for each in problems)))


def _find_problems(upload: NodeUpload) -> list[AboardError]:
    """The problems that are certain before anything is sent: permissions and disk space."""
    name = upload.node.name
    problems: list[AboardError] = []
    needed: dict[int, int] = defaultdict(int)
    for to, size, disk in upload.needs():
        if not disk.writable:
            problems.append(build_permission_error(name, to, disk.nearest))
            continue
        # Several directories may share one disk, which needs space for all of them.
        needed[disk.device] += size
        total = needed[disk.device] + SPARE
        if size and total > disk.free:
            problems.append(build_no_room_error(name, disk.nearest, free=disk.free, needed=total))
    return problems


def _verify_hashes(uploads: Sequence[NodeUpload], directories: Sequence[SyncDirectory]) -> None:
    for place, directory in enumerate(directories):
        for upload in uploads:
            for file in directory.find_gaps(upload.list_files(place)):
                path = f"{directory.to}/{file.name}"
                raise build_hash_error(upload.node.name, path, wanted=file.sha256, found="none")
