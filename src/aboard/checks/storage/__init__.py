"""Storage: the directories that a run needs are there, answer, have room, and are the same where they should be."""

import shlex
from collections.abc import Iterator

from aboard.checks.scripted import typed
from aboard.checks.storage.facts import STORAGE, Mount, Place
from aboard.checks.storage.room import ROOM, no_room, not_writable, outputs, unknown_room
from aboard.checks.storage.share import EXCHANGE, how_to_mount, not_mapped, not_shared, outsiders
from aboard.checks.storage.space import short_of_room
from aboard.checks.storage.stories import STORIES
from aboard.core import nodeset
from aboard.core.facts import Facts
from aboard.core.rule import Subject
from aboard.diagnoses import Finding, Severity


def missing(facts: Facts) -> Iterator[Finding]:
    """A rank starts in its working directory; where that isn't, it doesn't start."""
    found: dict[tuple[str, str], list[str]] = {}
    there = [name for name, place in _workdirs(facts).items() if place.disk]
    for name, place in _workdirs(facts).items():
        if place.trouble and not place.silent and not _on_dead(facts, name, place):
            found.setdefault((place.path, place.trouble), []).append(name)
    for (path, trouble), nodes in found.items():
        others = f"; {nodeset.fold(there)} {'has' if len(there) == 1 else 'have'} it" if there else " on any node"
        lines = [typed(facts.cluster.node(name), f"mkdir -p {shlex.quote(path)}") for name in nodes[:4]]
        yield Finding(
            code="storage-missing",
            severity=Severity.BLOCK,
            nodes=tuple(nodes),
            seen=f"{path}: {trouble}{others}",
            why="Ranks start in the working directory, so none can start there.",
            fix="\n".join(lines) + "    # or mount what should be there, or correct `workdir:` in aboard.yaml",
        )


def dead_mounts(facts: Facts) -> Iterator[Finding]:
    """Whatever touches a mount whose server is gone hangs, and can't even be killed."""
    found: dict[tuple[Mount, str, bool], list[str]] = {}
    written = outputs(facts)
    for name, storage in facts.of(STORAGE).items():
        places = [*storage.places.values(), *([written[name]] if name in written else [])]
        needed = {place.mount.point for place in places}
        for mount, why in storage.dead.items():
            found.setdefault((mount, why, mount.point in needed), []).append(name)
        for place in storage.places.values():
            if place.silent and place.mount not in storage.dead:
                found.setdefault((place.mount, f"{place.path} does not answer", True), []).append(name)
    for (mount, why, needed_there), nodes in found.items():
        where = nodeset.fold(nodes)
        yield Finding(
            code="storage-dead-mount",
            severity=Severity.BLOCK if needed_there else Severity.WARN,
            nodes=tuple(nodes),
            seen=f"{mount.point} ({mount.type} of {mount.source}): {why}",
            why="Every process that touches it hangs in state D and can't be killed, ranks as well.",
            fix=f"sudo umount -l {shlex.quote(mount.point)}    # on {where}; frees what hangs on it\n"
            f"sudo mount {how_to_mount(mount)}    # on {where}; when its server"
            " answers again",
        )


def not_mounted(facts: Facts) -> Iterator[Finding]:
    """A mount that didn't come up at boot leaves an empty directory, which looks like the real one."""
    for name, (place, mount, share) in _unmounted(facts).items():
        if name not in outsiders(facts):
            yield Finding(
                code="storage-not-mounted",
                severity=Severity.BLOCK if mount.network else Severity.WARN,
                nodes=(name,),
                seen=f"nothing is mounted at {mount.point}, so {place.path} is part of {place.mount.point} there;"
                f" {share} nodes have {mount.type} mounted there",
                why="Ranks there find an empty or an old directory where the others find their files.",
                fix=f"sudo mount {how_to_mount(mount)}    # on {name}",
            )


def read_only(facts: Facts) -> Iterator[Finding]:
    """Where nothing can be written, no checkpoint and no log is."""
    told = facts.of(STORAGE)
    # What lies beneath a mount that is missing is nobody's to write to; the mount is what is wrong.
    beneath = {*outsiders(facts), *_unmounted(facts)}
    found: dict[tuple[str, str], list[str]] = {}
    for name, storage in told.items():
        for role, place in storage.places.items():
            if place.read_only:
                seen = f"{place.path} ({place.mount.type}) is mounted read-only"
                fix = f"sudo mount -o remount,rw {shlex.quote(place.mount.point)}"
                found.setdefault((seen, fix), []).append(name)
            elif role == "workdir" and place.disk and not place.writable and name not in beneath:
                seen = f"user {storage.uid} may not write to {place.path}, which belongs to user {place.owner}"
                found.setdefault((seen, f"sudo chown {storage.uid} {shlex.quote(place.path)}"), []).append(name)
    for (seen, fix), nodes in found.items():
        # If it is so everywhere, it may well be meant: code from an image, outputs elsewhere.
        everywhere = len(nodes) == len(told)
        yield Finding(
            code="storage-read-only",
            severity=Severity.INFO if everywhere else Severity.WARN,
            nodes=tuple(nodes),
            seen=seen,
            why="Checkpoints, logs and caches that ranks write there fail."
            " A disk that had errors is often mounted read-only by the kernel itself.",
            fix=f"sudo dmesg | tail    # on {nodeset.fold(nodes)}; were there disk errors?\n"
            f"{fix}    # on {nodeset.fold(nodes)}; if not",
        )


def unknown_storage(facts: Facts) -> Iterator[Finding]:
    """A node whose storage doesn't even answer is not vouched for."""
    for name, unknown in facts.unknown(STORAGE).items():
        yield Finding(
            code="unknown-storage",
            severity=Severity.WARN,
            nodes=(name,),
            seen=f"its storage stayed unknown: {unknown.why}",
            why="What can't be asked can't be vouched for.",
            fix=typed(facts.cluster.node(name), "timeout 5 df -h"),
        )


def _workdirs(facts: Facts) -> dict[str, Place]:
    return {name: each.workdir for name, each in facts.of(STORAGE).items() if each.workdir is not None}


def _unmounted(facts: Facts) -> dict[str, tuple[Place, Mount, str]]:
    """The nodes that lack a mount which at least half have on the way to the directory, and how many have it."""
    places = {name: place for name, place in _workdirs(facts).items() if place.disk}
    found = {}
    for name, place in places.items():
        alike = [each for each in places.values() if each.path == place.path]
        mounted = [each for each in alike if len(each.mount.point) > len(place.mount.point)]
        if mounted and 2 * len(mounted) >= len(alike):
            found[name] = (place, mounted[0].mount, f"{len(mounted)} of {len(alike)}")
    return found


def _on_dead(facts: Facts, name: str, place: Place) -> bool:
    return place.mount in facts.of(STORAGE)[name].dead


SUBJECT = Subject(
    name="storage",
    title="directories are there, answer, have room, and are shared as they seem",
    probes=(STORAGE,),
    rules=(
        dead_mounts,
        missing,
        not_shared,
        not_mounted,
        no_room,
        not_writable,
        short_of_room,
        read_only,
        not_mapped,
        unknown_storage,
        unknown_room,
    ),
    exercises=(ROOM, EXCHANGE),
    stories=STORIES,
)
