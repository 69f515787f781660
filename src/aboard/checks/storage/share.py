"""Shared or not: one node leaves a nonce in the working directory, the others look for it, and each maps a file."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from aboard.checks.scripted import output, said, typed
from aboard.checks.storage.facts import STORAGE, Mount, Place, command
from aboard.checks.storage.space import Shortage, full
from aboard.core import nodeset
from aboard.core.decoding import Matching, decode
from aboard.core.exercise import Ask, Exercise, Round, Script
from aboard.core.facts import Facts, Unknown
from aboard.core.nodeset import fold_quoted
from aboard.core.probe import Unparsed
from aboard.diagnoses import Finding, Severity, Shell, shell, storage
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy import dataclass

# Some network file systems show a new file to others only after a while.
NETWORK_WAIT = 2.0
_SECONDS = 10.0
# Nobody has three shares of one name; two nodes that find nobody tell that each has its own.
_MAX_GROUPS = 3
_MAX_LONELY = 2


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How far a node came with a file of its own: `write` or `map` is where it failed, nothing is well."""

    step: Literal["", "write", "map"]
    error: Untrusted


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a node said of one round; `name` is the file that it wrote, which the others are asked for."""

    name: Annotated[str, Matching(r"[\w.-]*\w")] = ""
    nonce: Untrusted = NO_TEXT
    mapped: Trial | None = None
    error: Untrusted = Untrusted("what it printed can't be read")

    @property
    def trial(self) -> Trial:
        return self.mapped or Trial(step="write", error=self.error)


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Nodes that see each other's files, a group each; `alone` are those that no group has; and each node's trial."""

    groups: tuple[tuple[str, ...], ...] = ()
    alone: tuple[str, ...] = ()
    trials: Mapping[str, Trial] = field(default_factory=dict)


def exchange(facts: Facts) -> Script[Sharing]:
    """A nonce written here and read there, for as long as there are nodes that have found nobody."""
    places = _workdirs(facts)
    left = list(places)
    groups: list[tuple[str, ...]] = []
    alone: list[str] = []
    trials: dict[str, Trial] = {}
    failed: set[str] = set()
    while len(groups) < _MAX_GROUPS and len(alone) < _MAX_LONELY:
        writer = next((name for name in left if places[name].writable and name not in failed), None)
        if writer is None:
            break
        wrote = _told((yield _round(facts, [writer], "write"))[writer])
        if not wrote.name or not wrote.nonce:
            failed.add(writer)
            trials[writer] = wrote.trial
            continue
        read = yield _round(facts, left, "read", wrote.name)
        yield _round(facts, [writer], "remove", wrote.name)
        answers = {name: _told(reply) for name, reply in read.items()}
        for name, answer in answers.items():
            trials.setdefault(name, answer.trial)
        mates = tuple(name for name in left if answers[name].nonce == wrote.nonce)
        if len(mates) > 1:
            groups.append(mates)
        else:
            alone.append(writer)
        left = [name for name in left if name not in mates and name != writer]
    return Sharing(groups=tuple(groups), alone=(*alone, *left), trials=trials)


EXCHANGE = Exercise(name="storage-exchange", script=exchange, quick=False)


def not_shared(facts: Facts) -> Iterator[Finding]:
    """A directory that some nodes share and one does not is a mount that is missing there."""
    sharing = _sharing(facts)
    lost = outsiders(facts)
    places = _workdirs(facts)
    if lost:
        inside = _inside(facts, sharing)
        place, model = places[lost[0]], places[inside[0]]
        yield storage.NOT_SHARED.finding(
            nodes=lost,
            seen=f"{place} there is not the {model} that {nodeset.fold(inside)} share: a file written on"
            f" {inside[0]} isn't there; it is {_what(place)}, on {inside[0]} it is {_what(model)}",
            fix=storage.NOT_SHARED.fix(how=how_to_mount(model.mount), nodes=fold_quoted(lost)),
        )
    elif len(sharing.alone) > 1:
        yield storage.PRIVATE.finding(
            nodes=sharing.alone,
            seen=f"{places[sharing.alone[0]]} is not shared: each node has its own",
            fix=storage.PRIVATE.fix(),
        )


def not_mapped(facts: Facts) -> Iterator[Finding]:
    """Datasets and weights are mapped into memory; some cloud and FUSE file systems can't do that."""
    for name, trial in _sharing(facts).trials.items():
        place, node, error = _workdirs(facts)[name], facts.cluster.node(name), trial.error.visible(500)
        if trial.step == "map":
            yield storage.NO_MMAP.finding(
                nodes=(name,),
                seen=f"a file in {place} ({_what(place)}) can't be mapped into memory: {error}",
                fix=storage.NO_MMAP.fix(look=typed(node, shell("findmnt -T {path}", path=place.path))),
            )
        elif trial.step == "write" and error in {"No space left on device", "Disk quota exceeded"}:
            seen = f"nothing can be written to {place}: {error}"
            shortage = Shortage(diagnosis=storage.FULL, severity=Severity.BLOCK, path=place.path, seen=seen)
            if place.disk is not None and place.disk.free and place.disk.inodes_free:
                yield full(facts, shortage, (name,))
        elif trial.step and place.writable:
            try_it = shell("cd {path} && touch .test && rm .test", path=place.path)
            yield storage.READ_ONLY.finding(
                nodes=(name,),
                seen=f"nothing can be written to {place}: {error}",
                fix=storage.READ_ONLY.fix("try", try_it=typed(node, try_it)),
            )


def outsiders(facts: Facts) -> tuple[str, ...]:
    """The nodes that have a directory of their own where others share one."""
    sharing = _sharing(facts)
    inside = _inside(facts, sharing)
    everyone = [name for group in sharing.groups for name in group] + list(sharing.alone)
    return tuple(node.name for node in facts.cluster if node.name in everyone and node.name not in inside)


def how_to_mount(mount: Mount) -> Shell:
    """What comes after `mount`; what isn't a network's is in /etc/fstab, or nobody else knows how."""
    if not mount.network:
        return shell("{point}", point=mount.point)
    return shell("-t {type} {source} {point}", type=mount.type, source=mount.source, point=mount.point)


def _inside(facts: Facts, sharing: Sharing) -> tuple[str, ...]:
    """Whose directory is the right one: the largest group's; of nodes all alone, those with a network mount."""
    if sharing.groups:
        return max(sharing.groups, key=len)
    places = _workdirs(facts)
    remote = tuple(name for name in sharing.alone if places[name].mount.network)
    return remote if 2 * len(remote) >= len(sharing.alone) > 0 else sharing.alone


def _sharing(facts: Facts) -> Sharing:
    outcome = facts.outcome(EXCHANGE)
    return Sharing() if outcome is None or isinstance(outcome, Unknown) else outcome


def _workdirs(facts: Facts) -> dict[str, Place]:
    """The working directories that are there."""
    told = facts.of(STORAGE)
    return {name: each.workdir for name, each in told.items() if each.workdir and each.workdir.disk}


def _round(facts: Facts, names: list[str], what: str, *words: str) -> Round:
    places = _workdirs(facts)
    asks = {}
    for name in names:
        wait = [str(NETWORK_WAIT if places[name].mount.network else 0)] if what == "read" else []
        node = facts.cluster.node(name)
        asks[name] = Ask.to_run(command(node, what, node.workdir or "", *words, *wait, timeout=_SECONDS))
    return asks


def _told(reply: Mapping[str, Any] | Unknown) -> Told:
    try:
        return decode(Told, said(output(reply)))
    except Unparsed as error:
        return Told(error=Untrusted(str(error)))


def _what(place: Place) -> str:
    mount = place.mount
    return mount.shown_source if mount.network else f"{mount.type} mounted at {mount}"
