"""What the node itself says about a death: the kernel's own kills, and disks that are full, with the numbers."""

import re
from dataclasses import replace

from aboard.core.evidence import Evidence
from aboard.core.run import Child
from aboard.core.size import size
from aboard.core.witness import Disk, NodeWitness
from aboard.core.words import many, visible
from aboard.diagnoses import death
from aboard.verdicts.words import Told

_KILLED, _BUS = -9, -7
_FULL = 0.02
_SHM = "/dev/shm"  # noqa: S108 - its name, and nothing is written there
# How Python and torch say it of a process that the rank had started.
_WORKER = re.compile(r"died with <Signals\.SIGKILL|killed by signal: Killed|exit(ed|code)[^.]{0,40}-9\b")
_NO_ROOM = re.compile(r"No space left on device|Errno 28|Disk quota exceeded|Errno 122")


def with_node(evidence: Evidence, cause: Child, told: Told) -> Told:
    """The same death with what was seen on its node; unchanged where nothing there explains it."""
    node = evidence.witness.get(cause.node)
    if node is None:
        why = evidence.unheard.get(cause.node, "")
        return replace(told, seen=f"{told.seen}; {cause.node} could not be looked at: {why}") if why else told
    killed = _WORKER.search(cause.raised.message) is not None if cause.raised is not None else cause.code == _KILLED
    if killed:
        return _out_of_memory(cause, node, told)
    shm = next((disk for disk in node.disks if disk.path == _SHM and disk.size), None)
    if cause.code == _BUS and shm is not None and shm.free < _FULL * shm.size:
        return replace(
            told,
            diagnosis=death.SHM_FULL,
            seen=f"{told.seen}; /dev/shm has {size(shm.free)} of {size(shm.size)} left",
            why="Data loaders and NCCL put what they share there; it is full.",
            fix=death.SHM_FULL.fix("remount", node=cause.node),
        )
    said = f"{cause.raised.message if cause.raised else ''} {told.seen}"
    full = next((disk for disk in node.disks if _is_full(disk)), None)
    if _NO_ROOM.search(said) and full is not None:
        left = "no names" if full.inodes < _FULL else f"{size(full.free)} of {size(full.size)}"
        return replace(
            told,
            diagnosis=death.DISK_FULL,
            seen=f"{told.seen}; the disk of {full.path.visible()} has {left} left",
            fix=death.DISK_FULL.fix("sizes", path=full.path, node=cause.node),
        )
    return told


def _out_of_memory(cause: Child, node: NodeWitness, told: Told) -> Told:
    before, after = node.oom_before, node.oom_kills
    lines = [line for line in node.kernel or () if "Killed process" in line or "oom-kill" in line]
    if not (before is not None and after is not None and after > before):
        return told
    limit = f"; its control group has {size(node.held or 0)} of {size(node.limit)}" if node.limit else ""
    total = f"; {size(node.free or 0)} of {size(node.memory)} are free" if node.memory and not node.limit else ""
    kernel = f"; the kernel: {visible(lines[-1].raw().partition(' ')[2], 160)}" if lines else ""
    return replace(
        told,
        diagnosis=death.OUT_OF_MEMORY,
        seen=f"{told.seen}, out of memory: {many(after - before, 'kill')} since the start{limit}{total}{kernel}",
        why="The kernel ended it because the memory of the node, or of its control group, was used up.",
        fix=death.OUT_OF_MEMORY.fix("killed", node=cause.node),
    )


def _is_full(disk: Disk) -> bool:
    return bool(disk.size) and (disk.free < _FULL * disk.size or disk.inodes < _FULL)
