"""Room for the run: what `run:` in aboard.yaml says it will write, against what is free where it writes."""

import shlex
from collections.abc import Iterator, Mapping

from aboard.checks.listed import listed
from aboard.checks.scripted import output, typed
from aboard.checks.storage.facts import STORAGE, Place, command, parse_place
from aboard.checks.storage.script import MOUNT_SECONDS
from aboard.core import nodeset
from aboard.core.exercise import Ask, Exercise, Script
from aboard.core.facts import Facts, Unknown
from aboard.core.probe import Unparsed
from aboard.core.size import size
from aboard.core.writes import Writes
from aboard.diagnoses import Finding, Severity

_SECONDS = MOUNT_SECONDS + 5


def measure(facts: Facts) -> Script[Mapping[str, Place | Unknown]]:
    """Asks every node that will have a rank; nobody, when nothing is said of what the run writes."""
    wanted = facts.cluster.writes
    writers = [node for node in facts.reached() if node.slots != 0] if wanted else []
    if wanted is None or not writers:
        return {}
    asked = {node.name: command(node, "room", wanted.path, timeout=_SECONDS) for node in writers}
    replies = yield {
        name: Ask(op="run", fields={"argv": list(each.argv), "timeout": _SECONDS}, within=_SECONDS + 5)
        for name, each in asked.items()
    }
    found: dict[str, Place | Unknown] = {}
    for name, reply in replies.items():
        try:
            found[name] = parse_place(output(reply))
        except Unparsed as error:
            found[name] = Unknown(why=str(error))
    return found


ROOM = Exercise(name="storage-room", script=measure)


def outputs(facts: Facts) -> dict[str, Place]:
    """What is known of the directory that the run will write to, by node."""
    return {name: place for name, place in _answers(facts).items() if isinstance(place, Place)}


def too_small(facts: Facts) -> dict[str, Place]:
    """The nodes whose disk has less room than the run needs."""
    wanted = facts.cluster.writes
    if wanted is None:
        return {}
    known = {name: place for name, place in outputs(facts).items() if _writable(place)}
    # A file system that counts nothing says 0 of 0.
    return {
        name: place for name, place in known.items() if place.disk and place.disk.size and place.disk.free < wanted.size
    }


def no_room(facts: Facts) -> Iterator[Finding]:
    """A run that fills its disk loses the checkpoint that it was writing, hours after it could have been known."""
    wanted = facts.cluster.writes
    disks: dict[tuple[object, ...], dict[str, Place]] = {}
    for name, place in too_small(facts).items():
        disks.setdefault(_disk(place), {})[name] = place
    for places in disks.values():
        if wanted is not None:
            yield _too_small(facts, wanted, places)


def not_writable(facts: Facts) -> Iterator[Finding]:
    """A run that can't write where it was told to has nothing to show for its time."""
    first = next((node.name for node in facts.cluster if node.slots != 0), "")
    dead = {name: storage.dead for name, storage in facts.of(STORAGE).items()}
    for name, place in outputs(facts).items():
        if _writable(place) or place.silent or place.mount in dead.get(name, ()):
            continue
        trouble = place.trouble or ("it is mounted read-only" if place.read_only else f"user {place.owner} owns it")
        yield Finding(
            code="storage-output",
            # Rank 0 is on the first node, and many programs write there alone.
            severity=Severity.BLOCK if name == first else Severity.WARN,
            nodes=(name,),
            seen=f"nothing can be written to {place.path} ({place.mount.type} on {place.mount.point}): {trouble}",
            why="The run writes its checkpoints there, and ends when it can't.",
            fix=f"{typed(facts.cluster.node(name), f'namei -l {shlex.quote(place.path)}')}"
            "    # here; whose is it? Make it, or correct `output:` under `run:` in aboard.yaml",
        )


def unknown_room(facts: Facts) -> Iterator[Finding]:
    """What could not be measured is said, never taken for enough."""
    wanted = facts.cluster.writes
    dead = {name: storage.dead for name, storage in facts.of(STORAGE).items()}
    whys = {name: each.why for name, each in _answers(facts).items() if isinstance(each, Unknown)}
    silent = {name: place for name, place in outputs(facts).items() if place.silent}
    # A mount that is known to be dead is told as that.
    whys |= {name: place.trouble for name, place in silent.items() if place.mount not in dead.get(name, ())}
    if whys and wanted is not None:
        first = next(iter(whys))
        yield Finding(
            code="unknown-storage-room",
            severity=Severity.WARN,
            nodes=tuple(whys),
            seen=f"whether {wanted.path} has room for {size(wanted.size)} stayed unknown:"
            f" {listed(sorted(set(whys.values())), 2)}",
            why="What can't be asked can't be vouched for.",
            fix=typed(facts.cluster.node(first), f"timeout 5 df -h {shlex.quote(wanted.path)}"),
        )


def _answers(facts: Facts) -> Mapping[str, Place | Unknown]:
    outcome = facts.outcome(ROOM)
    if isinstance(outcome, Unknown):
        return {node.name: outcome for node in facts.reached()}
    return outcome or {}


def _disk(place: Place) -> tuple[object, ...]:
    """Nodes that share a disk share the shortage, although one may see a few bytes more than the next."""
    return (place.mount.type, place.mount.source) if place.mount.network else (place.mount, place.disk)


def _writable(place: Place) -> bool:
    return place.disk is not None and place.writable and not place.read_only


def _too_small(facts: Facts, wanted: Writes, places: Mapping[str, Place]) -> Finding:
    names = tuple(places)
    # The least of those who share it: what is free grows and shrinks while they look.
    place = min(places.values(), key=lambda place: place.disk.free if place.disk else 0)
    free, whole = (place.disk.free, place.disk.size) if place.disk else (0, 0)
    shared = f", which {nodeset.fold(names)} share" if len(names) > 1 and place.mount.network else ""
    line = f"du -xh --max-depth=1 {shlex.quote(place.mount.point)} 2>/dev/null | sort -h | tail"
    return Finding(
        code="storage-space",
        severity=Severity.BLOCK,
        nodes=names,
        seen=f"the run will write {size(wanted.size)} to {wanted.path}; {size(free)} of {size(whole)} are free there"
        f" ({place.mount.type} on {place.mount.point}{shared}), {size(wanted.size - free)} too little",
        why="When the disk is full, the checkpoint that was being written is lost, and the other ranks wait for the one"
        " that died of it.",
        fix=f"{typed(facts.cluster.node(names[0]), line)}    # here; what is largest there? Remove what nobody needs\n"
        "run: {output: PATH, writes: SIZE}    # in aboard.yaml, if it shall write elsewhere, or less",
    )
