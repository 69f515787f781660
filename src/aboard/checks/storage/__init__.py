"""Storage: the directories that a run needs are there, answer, have room, and are the same where they should be."""

from collections.abc import Iterator

from aboard.checks.scripted import in_lines, typed
from aboard.checks.storage.facts import STORAGE, Mount, Place
from aboard.checks.storage.room import ROOM, no_room, not_writable, outputs, unknown_room
from aboard.checks.storage.share import EXCHANGE, how_to_mount, not_mapped, not_shared, outsiders
from aboard.checks.storage.space import short_of_room
from aboard.checks.unknown import unknown_stories
from aboard.core import nodeset
from aboard.core.facts import Facts
from aboard.core.nodeset import fold_quoted
from aboard.core.rule import Subject
from aboard.diagnoses import Finding, Severity, Shell, shell, storage, unknown
from aboard.diagnoses.catalogue import diagnoses_in
from aboard.diagnoses.untrusted import Untrusted


def missing(facts: Facts) -> Iterator[Finding]:
    """A rank starts in its working directory; where that isn't, it doesn't start."""
    found: dict[tuple[Untrusted, Untrusted], list[str]] = {}
    there = [name for name, place in _workdirs(facts).items() if place.disk]
    for name, place in _workdirs(facts).items():
        if place.trouble and not place.silent and not _on_dead(facts, name, place):
            found.setdefault((place.path, place.trouble), []).append(name)
    for (path, trouble), nodes in found.items():
        others = f"; {nodeset.fold(there)} {'has' if len(there) == 1 else 'have'} it" if there else " on any node"
        make = shell("mkdir -p {path}", path=path)
        lines = in_lines(typed(facts.cluster.node(name), make) for name in nodes[:4])
        yield storage.MISSING.finding(
            nodes=tuple(nodes),
            seen=f"{path.visible(500)}: {trouble.visible(500)}{others}",
            fix=storage.MISSING.fix(lines=lines),
        )


def dead_mounts(facts: Facts) -> Iterator[Finding]:
    """Whatever touches a mount whose server is gone hangs, and can't even be killed."""
    found: dict[tuple[Mount, str, bool], list[str]] = {}
    written = outputs(facts)
    for name, told in facts.of(STORAGE).items():
        places = [*told.places.values(), *([written[name]] if name in written else [])]
        needed = {place.mount.point for place in places}
        for mount, why in told.dead.items():
            found.setdefault((mount, why.visible(500), mount.point in needed), []).append(name)
        for place in told.places.values():
            if place.silent and place.mount not in told.dead:
                found.setdefault((place.mount, f"{place} does not answer", True), []).append(name)
    for (mount, told_why, needed_there), nodes in found.items():
        yield storage.DEAD_MOUNT.finding(
            severity=Severity.BLOCK if needed_there else Severity.WARN,
            nodes=tuple(nodes),
            seen=f"{mount} ({mount.shown_source}): {told_why}",
            fix=storage.DEAD_MOUNT.fix(point=mount.point, how=how_to_mount(mount), nodes=fold_quoted(nodes)),
        )


def not_mounted(facts: Facts) -> Iterator[Finding]:
    """A mount that didn't come up at boot leaves an empty directory, which looks like the real one."""
    for name, (place, mount, share) in _unmounted(facts).items():
        if name not in outsiders(facts):
            yield storage.NOT_MOUNTED.finding(
                severity=Severity.BLOCK if mount.network else Severity.WARN,
                nodes=(name,),
                seen=f"nothing is mounted at {mount}, so {place} is part of {place.mount} there;"
                f" {share} nodes have {mount.type} mounted there",
                fix=storage.NOT_MOUNTED.fix(how=how_to_mount(mount), node=name),
            )


def read_only(facts: Facts) -> Iterator[Finding]:
    """Where nothing can be written, no checkpoint and no log is."""
    told = facts.of(STORAGE)
    # What lies beneath a mount that is missing is nobody's to write to; the mount is what is wrong.
    beneath = {*outsiders(facts), *_unmounted(facts)}
    found: dict[tuple[str, Shell], list[str]] = {}
    for name, each in told.items():
        for role, place in each.places.items():
            if place.read_only:
                seen = f"{place} ({place.mount.type}) is mounted read-only"
                mend = shell("sudo mount -o remount,rw {point}", point=place.mount.point)
                found.setdefault((seen, mend), []).append(name)
            elif role == "workdir" and place.disk and not place.writable and name not in beneath:
                seen = f"user {each.uid} may not write to {place}, which belongs to user {place.owner}"
                mend = shell("sudo chown {uid} {path}", uid=each.uid, path=place.path)
                found.setdefault((seen, mend), []).append(name)
    for (seen, mend), nodes in found.items():
        # If it is so everywhere, it may well be meant: code from an image, outputs elsewhere.
        everywhere = len(nodes) == len(told)
        yield storage.READ_ONLY.finding(
            severity=Severity.INFO if everywhere else Severity.WARN,
            nodes=tuple(nodes),
            seen=seen,
            fix=storage.READ_ONLY.fix("mend", mend=mend, nodes=fold_quoted(nodes)),
        )


def unknown_storage(facts: Facts) -> Iterator[Finding]:
    """A node whose storage doesn't even answer is not vouched for."""
    fact = unknown.fact(STORAGE.name)
    for name, answer in facts.unknown(STORAGE).items():
        yield fact.finding(
            nodes=(name,),
            seen=f"its storage stayed unknown: {answer.why}",
            fix=fact.fix("by-hand", line=typed(facts.cluster.node(name), shell("timeout 5 df -h"))),
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
    stories=(*diagnoses_in(storage), unknown.STORAGE_ROOM, *unknown_stories((STORAGE,))),
)
