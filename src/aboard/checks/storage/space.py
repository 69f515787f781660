"""Room: what is full, or nearly so, in bytes and in files."""

from collections.abc import Iterator

from aboard.checks.scripted import typed
from aboard.checks.storage.facts import STORAGE, Place
from aboard.checks.storage.room import outputs, too_small
from aboard.core.facts import Facts
from aboard.core.size import GIB, size
from aboard.diagnoses import Diagnosis, Finding, Severity, shell, storage
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass

LOW_BYTES = GIB
# A hundredth of a large disk is room enough.
LOW_SHARE = 0.01
ROOM_ENOUGH = 100 * GIB
# Sockets, compiled kernels and small files go to /tmp.
LOW_TMP = 64 << 20
LOW_INODES = 10_000


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """One shortage, which several nodes may have alike: those that share the disk do."""

    diagnosis: Diagnosis
    severity: Severity
    path: Untrusted
    seen: str


def short_of_room(facts: Facts) -> Iterator[Finding]:
    """A full disk loses the checkpoint that the run was for, and fails in ways that don't say so."""
    found: dict[Shortage, list[str]] = {}
    written, short = outputs(facts), too_small(facts)
    for name, each in facts.of(STORAGE).items():
        told: set[Untrusted] = set()
        for role, place in {**each.places, **({"output": written[name]} if name in written else {})}.items():
            # Two directories on one disk are one shortage.
            if place.mount.point not in told:
                # How much the run needs there is known, and a disk that is too small for it has been told.
                known = role == "output" or (name in short and short[name].mount == place.mount)
                shortages = [None if known else _bytes(role, place), _inodes(place)]
                told |= {place.mount.point for shortage in shortages if shortage is not None}
                for shortage in filter(None, shortages):
                    found.setdefault(shortage, []).append(name)
    for shortage, nodes in found.items():
        yield full(facts, shortage, tuple(nodes))


def full(facts: Facts, shortage: Shortage, nodes: tuple[str, ...]) -> Finding:
    du = shell("du -x --inodes") if shortage.diagnosis is storage.INODES else shell("du -x")
    look = shell("{du:shell} --max-depth=2 {path} 2>/dev/null | sort -n | tail", du=du, path=shortage.path)
    return shortage.diagnosis.finding(
        severity=shortage.severity,
        nodes=nodes,
        seen=shortage.seen,
        fix=shortage.diagnosis.fix(look=typed(facts.cluster.node(nodes[0]), look)),
    )


def _bytes(role: str, place: Place) -> Shortage | None:
    disk = place.disk
    if disk is None or disk.size == 0 or place.read_only:
        return None
    where = f"{place} ({place.mount.type} on {place.mount})"
    if disk.free == 0:
        seen = f"{where} is full: 0 B of {size(disk.size)} are free"
        return Shortage(diagnosis=storage.FULL, severity=Severity.BLOCK, path=place.path, seen=seen)
    low = disk.free < LOW_BYTES or (disk.free < LOW_SHARE * disk.size and disk.free < ROOM_ENOUGH)
    if disk.free < LOW_TMP if role == "tmp" else low:
        seen = f"{where} has only {size(disk.free)} free of {size(disk.size)}"
        return Shortage(diagnosis=storage.LOW, severity=Severity.WARN, path=place.path, seen=seen)
    return None


def _inodes(place: Place) -> Shortage | None:
    disk = place.disk
    if disk is None or disk.inodes == 0 or place.read_only:
        return None
    if disk.inodes_free < min(LOW_INODES, LOW_SHARE * disk.inodes) or disk.inodes_free == 0:
        severity = Severity.WARN if disk.inodes_free else Severity.BLOCK
        where = f"{place} ({place.mount.type} on {place.mount})"
        seen = f"{where} has room for {disk.inodes_free:,} more files only"
        return Shortage(diagnosis=storage.INODES, severity=severity, path=place.path, seen=seen)
    return None
