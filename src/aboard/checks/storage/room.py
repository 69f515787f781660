"""Room for the run: what `run:` in aboard.yaml says it will write, against what is free where it writes."""

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
from aboard.diagnoses import Finding, Severity, shell, storage, unknown

_SECONDS = MOUNT_SECONDS + 5


def measure(facts: Facts) -> Script[Mapping[str, Place | Unknown]]:
    """Asks every node that will have a rank; nobody, when nothing is said of what the run writes."""
    wanted = facts.cluster.writes
    writers = [node for node in facts.reached() if node.slots != 0] if wanted else []
    if wanted is None or not writers:
        return {}
    replies = yield {node.name: Ask.to_run(command(node, "room", wanted.path, timeout=_SECONDS)) for node in writers}
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
    dead = {name: told.dead for name, told in facts.of(STORAGE).items()}
    for name, place in outputs(facts).items():
        if _writable(place) or place.silent or place.mount in dead.get(name, ()):
            continue
        trouble = place.trouble.visible(500) or (
            "it is mounted read-only" if place.read_only else f"user {place.owner} owns it"
        )
        yield storage.OUTPUT.finding(
            # Rank 0 is on the first node, and many programs write there alone.
            severity=Severity.BLOCK if name == first else Severity.WARN,
            nodes=(name,),
            seen=f"nothing can be written to {place} ({place.mount.type} on {place.mount}): {trouble}",
            fix=storage.OUTPUT.fix(look=typed(facts.cluster.node(name), shell("namei -l {path}", path=place.path))),
        )


def unknown_room(facts: Facts) -> Iterator[Finding]:
    """What could not be measured is said, never taken for enough."""
    wanted = facts.cluster.writes
    dead = {name: told.dead for name, told in facts.of(STORAGE).items()}
    whys = {name: each.why for name, each in _answers(facts).items() if isinstance(each, Unknown)}
    silent = {name: place for name, place in outputs(facts).items() if place.silent}
    # A mount that is known to be dead is told as that.
    whys |= {
        name: place.trouble.visible(500) for name, place in silent.items() if place.mount not in dead.get(name, ())
    }
    if whys and wanted is not None:
        first = next(iter(whys))
        look = shell("timeout 5 df -h {path}", path=wanted.path)
        yield unknown.STORAGE_ROOM.finding(
            nodes=tuple(whys),
            seen=f"whether {wanted.path} has room for {size(wanted.size)} stayed unknown:"
            f" {listed(sorted(set(whys.values())), 2)}",
            fix=unknown.STORAGE_ROOM.fix(look=typed(facts.cluster.node(first), look)),
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
    look = shell("du -xh --max-depth=1 {point} 2>/dev/null | sort -h | tail", point=place.mount.point)
    return storage.SPACE.finding(
        nodes=names,
        seen=f"the run will write {size(wanted.size)} to {wanted.path}; {size(free)} of {size(whole)} are free there"
        f" ({place.mount.type} on {place.mount}{shared}), {size(wanted.size - free)} too little",
        fix=storage.SPACE.fix(look=typed(facts.cluster.node(names[0]), look)),
    )
