"""`aboard trust --undo`: takes back what was changed, on the nodes first and on this machine last."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from time import monotonic

from aboard.core.cluster.node import Node
from aboard.core.cluster.node_sets import fold_names
from aboard.core.trust.trust_report import UndoReport
from aboard.diagnoses import AboardError, Finding
from aboard.diagnoses.nodes import trust
from aboard.flows.trust.home_files import PRELUDE, HomeFiles
from aboard.flows.trust.node_access import Access, NodeLogins, TrustObserver, explain_failure
from aboard.record.trust_record import MachineRecord, TrustRecords
from aboard.transport.ssh_login import open_local_shell


async def undo_trust(
    nodes: Sequence[Node] | None, records: TrustRecords, access: Access, watcher: TrustObserver
) -> UndoReport:
    """Undoes the changes on these nodes, None for all that are recorded; one that fails stays recorded."""
    began = monotonic()
    async with AsyncExitStack() as stack:
        stack.enter_context(records.lock())
        logins = NodeLogins()
        stack.push_async_callback(logins.close)
        wanted = None if nodes is None else {records.of_node(node).path for node in nodes}
        todo = [record for record in records.nodes() if wanted is None or record.path in wanted]
        undone: list[str] = []
        findings: list[Finding] = []
        # Only one of them can ask for a password at a time.
        turns = asyncio.Semaphore(1 if access.terminal else len(todo) or 1)

        async def log_in(record: MachineRecord) -> HomeFiles | None:
            node = record.machine.node
            try:
                async with turns:
                    return HomeFiles(node.name, await logins.open_any(node, access, watcher), record)
            except AboardError as error:
                findings.append(explain_failure(node, error))
                return None

        async def undo(files: HomeFiles) -> None:
            try:
                findings.extend(_report_left(files.name, await files.undo()))
                undone.append(files.name)
            except AboardError as error:
                findings.append(explain_failure(files.record.machine.node, error))

        watcher.begin_phase("logging in")
        # To all of them first: nodes with the same home have one authorized_keys file.
        homes = await asyncio.gather(*map(log_in, todo))
        watcher.begin_phase("restoring the nodes' files")
        await asyncio.gather(*(undo(files) for files in homes if files is not None))
        head = await _undo_head(records, findings)
    return UndoReport(nodes=tuple(sorted(undone)), head=head, findings=tuple(findings), seconds=monotonic() - began)


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
        findings += _report_left("this machine", await HomeFiles("this machine", shell, record).undo())
    finally:
        await shell.close()
    return True


def _report_left(name: str, paths: Sequence[str]) -> list[Finding]:
    return [
        trust.UNDO_LEFT.finding(
            nodes=(name,),
            seen=f"{path} is not the key that Aboard created",
            fix=trust.UNDO_LEFT.fix(path=path, node=name),
        )
        for path in paths
    ]
