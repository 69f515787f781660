"""Free space: disks that are full or nearly full, in bytes or inodes."""

from collections.abc import Iterator

from aboard.core.cluster.node_commands import format_node_command
from aboard.core.probes.facts import Facts
from aboard.core.text.byte_sizes import GIB, format_size
from aboard.diagnoses import Diagnosis, Finding, Severity, format_shell
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.storage import diagnoses as storage
from aboard.doctor.storage.node_storage import STORAGE, NodeDirectory
from aboard.doctor.storage.output_space import list_output_directories, list_small_disks
from aboard.lazy_dataclass import dataclass

LOW_BYTES = GIB
# On a large disk, this much is enough even below LOW_SHARE.
LOW_SHARE = 0.01
ROOM_ENOUGH = 100 * GIB
# Sockets, compiled kernels and small files go to /tmp.
LOW_TMP = 64 << 20
LOW_INODES = 10_000


@dataclass(frozen=True, kw_only=True)
class SpaceShortage:
    """One shortage, equal on several nodes if they share the disk."""

    diagnosis: Diagnosis
    severity: Severity
    path: Untrusted
    seen: str


def find_space_shortages(facts: Facts) -> Iterator[Finding]:
    """A full disk loses checkpoints and causes misleading errors."""
    found: dict[SpaceShortage, list[str]] = {}
    written, short = list_output_directories(facts), list_small_disks(facts)
    for name, each in facts.of(STORAGE).items():
        mount_points: set[Untrusted] = set()
        for role, place in {**each.places, **({"output": written[name]} if name in written else {})}.items():
            # Two directories on one disk are one shortage.
            if place.mount.point not in mount_points:
                # The run's need is known here, and a disk too small for it has its own finding.
                known = role == "output" or (name in short and short[name].mount == place.mount)
                shortages = [None if known else _find_byte_shortage(role, place), _find_inode_shortage(place)]
                mount_points |= {place.mount.point for shortage in shortages if shortage is not None}
                for shortage in filter(None, shortages):
                    found.setdefault(shortage, []).append(name)
    for shortage, nodes in found.items():
        yield build_shortage_finding(facts, shortage, tuple(nodes))


def build_shortage_finding(facts: Facts, shortage: SpaceShortage, nodes: tuple[str, ...]) -> Finding:
    du = format_shell("du -x --inodes") if shortage.diagnosis is storage.INODES else format_shell("du -x")
    look = format_shell("{du:shell} --max-depth=2 {path} 2>/dev/null | sort -n | tail", du=du, path=shortage.path)
    return shortage.diagnosis.finding(
        severity=shortage.severity,
        nodes=nodes,
        seen=shortage.seen,
        fix=shortage.diagnosis.fix(look=format_node_command(facts.cluster.node(nodes[0]), look)),
    )


def _find_byte_shortage(role: str, directory: NodeDirectory) -> SpaceShortage | None:
    disk = directory.disk
    if disk is None or disk.size == 0 or directory.read_only:
        return None
    where = f"{directory} ({directory.mount.type} on {directory.mount})"
    if disk.free == 0:
        seen = f"{where} is full: 0 B of {format_size(disk.size)} is free"
        return SpaceShortage(diagnosis=storage.FULL, severity=Severity.BLOCK, path=directory.path, seen=seen)
    low = disk.free < LOW_BYTES or (disk.free < LOW_SHARE * disk.size and disk.free < ROOM_ENOUGH)
    if disk.free < LOW_TMP if role == "tmp" else low:
        seen = f"{where} has only {format_size(disk.free)} free of {format_size(disk.size)}"
        return SpaceShortage(diagnosis=storage.LOW, severity=Severity.WARN, path=directory.path, seen=seen)
    return None


def _find_inode_shortage(directory: NodeDirectory) -> SpaceShortage | None:
    disk = directory.disk
    if disk is None or disk.inodes == 0 or directory.read_only:
        return None
    if disk.inodes_free < min(LOW_INODES, LOW_SHARE * disk.inodes) or disk.inodes_free == 0:
        severity = Severity.WARN if disk.inodes_free else Severity.BLOCK
        where = f"{directory} ({directory.mount.type} on {directory.mount})"
        seen = f"{where} has room for only {disk.inodes_free:,} more files"
        return SpaceShortage(diagnosis=storage.INODES, severity=severity, path=directory.path, seen=seen)
    return None
