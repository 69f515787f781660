"""`aboard trust --undo`: takes back what was changed, on the nodes first and on this machine last."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from time import monotonic
from typing import TypeVar

from aboard.commands.trust.home_files import AUTHORIZED_KEYS, PRELUDE, HomeFiles
from aboard.commands.trust.node_access import Access, NodeLogins, TrustObserver, explain_failure, explain_refusal
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_sets import fold_names
from aboard.core.trust.trust_report import UndoReport
from aboard.diagnoses import AboardError, Finding, Unreachable
from aboard.diagnoses.nodes import trust
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.record.trust_record import MachineRecord, TrustRecords
from aboard.transport.shell.ssh_login import open_local_shell

T = TypeVar("T")


async def undo_trust(
    nodes: Sequence[Node] | None, records: TrustRecords, access: Access, observer: TrustObserver
) -> UndoReport:
    """Undoes the changes on these nodes, None for all that are recorded; one that fails stays recorded."""
    began = monotonic()
    async with AsyncExitStack() as stack:
        stack.enter_context(records.lock())
        logins = NodeLogins()
        stack.push_async_callback(logins.close)
        wanted = None if nodes is None else {records.of_node(node).path for node in nodes}
        todo = [record for record in records.nodes() if wanted is None or record.path in wanted]
        findings: list[Finding] = []
        # Only one of them can ask for a password at a time.
        turns = asyncio.Semaphore(1 if access.terminal else len(todo) or 1)

        async def log_in(record: MachineRecord) -> HomeFiles | None:
            node = record.machine.node
            try:
                async with turns:
                    return HomeFiles(node.name, await logins.open_any(node, access, observer), record)
            except Unreachable as error:
                refused = error.reason is UnreachableReason.KEY_REFUSED
                finding = explain_refusal(node, access, error.seen) if refused else explain_failure(node, error)
                findings.append(finding)
                return None

        observer.begin_phase("logging in")
        homes = [files for files in await asyncio.gather(*map(log_in, todo)) if files is not None]
        observer.begin_phase("restoring the nodes' files")
        undone = await undo_homes(homes, findings)
        head = await _undo_head(records, findings)
    return UndoReport(nodes=tuple(sorted(undone)), head=head, findings=tuple(findings), seconds=monotonic() - began)


async def undo_homes(homes: Sequence[HomeFiles], findings: list[Finding]) -> list[str]:
    """Undoes all changes over open shells, authorized_keys last; returns the names of those that are as they were.

    Nodes may share a home. So whoever's change is the newest of a file goes first, and lines are taken out of edited
    files only when no file is as one of them left it.
    """
    group = _HomeGroup(homes, findings)
    for files, left in await group.run(HomeFiles.remove_keys):
        for path in left:
            seen, fix = f"{path} is not the key that Aboard created", trust.UNDO_LEFT.fix(path=path, node=files.name)
            findings.append(trust.UNDO_LEFT.finding(nodes=(files.name,), seen=seen, fix=fix))
    for last in (False, True):
        while any(restored for _, restored in await group.run(partial(_restore_files, last=last))):
            pass
        await group.run(partial(_remove_lines, last=last))
    await group.run(HomeFiles.remove_directories)
    return [files.name for files in group.homes]


class _HomeGroup:
    """Takes a step in all homes at once; one that fails gets a finding and leaves the group."""

    def __init__(self, homes: Sequence[HomeFiles], findings: list[Finding]) -> None:
        self.homes = list(homes)
        self._findings = findings

    async def run(self, step: Callable[[HomeFiles], Awaitable[T]]) -> list[tuple[HomeFiles, T]]:
        done = await asyncio.gather(*(self._attempt(files, step) for files in self.homes))
        return [each for each in done if each is not None]

    async def _attempt(self, files: HomeFiles, step: Callable[[HomeFiles], Awaitable[T]]) -> tuple[HomeFiles, T] | None:
        try:
            return files, await step(files)
        except AboardError as error:
            self.homes.remove(files)
            self._findings.append(explain_failure(files.record.machine.node, error))
            return None


async def _restore_files(files: HomeFiles, *, last: bool) -> bool:
    return any([await files.restore(path) for path in files.list_changed() if (path == AUTHORIZED_KEYS) == last])


async def _remove_lines(files: HomeFiles, *, last: bool) -> None:
    for path in files.list_changed():
        if (path == AUTHORIZED_KEYS) == last:
            await files.remove_lines(path)


async def _undo_head(records: TrustRecords, findings: list[Finding]) -> bool:
    """Undoes this machine's own changes, once no node needs its key any more."""
    record, rest = records.head(), records.nodes()
    if record.machine.is_clean:
        return False
    if rest:
        names = fold_names([each.machine.name for each in rest])
        fix = trust.UNDO_WAITS.fix(records=[str(each.path) for each in rest])
        seen = f"changes on these nodes are still recorded: {names}"
        findings.append(trust.UNDO_WAITS.finding(nodes=(), seen=seen, fix=fix))
        return False
    shell = await open_local_shell(prelude=PRELUDE)
    try:
        return bool(await undo_homes([HomeFiles("this machine", shell, record)], findings))
    finally:
        await shell.close()
