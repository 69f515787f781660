"""Shared or not: one node writes a nonce to the working directory, the others read it, and each maps a file."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from aboard.core.cluster import node_sets
from aboard.core.cluster.node_commands import format_node_command
from aboard.core.cluster.node_sets import quote_folded_names
from aboard.core.decoding import Matching, decode
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Round, Script
from aboard.core.probes.probe import ProbeParseError
from aboard.diagnoses import Finding, Severity, Shell, format_shell
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.shared.script_probes import parse_run_reply, parse_script_output
from aboard.doctor.storage import diagnoses as storage
from aboard.doctor.storage.free_space import SpaceShortage, build_shortage_finding
from aboard.doctor.storage.node_storage import STORAGE, Mount, NodeDirectory, build_script_command
from aboard.lazy_dataclass import dataclass

# Some network file systems show a new file to others only after a while.
NETWORK_WAIT = 2.0
_SECONDS = 10.0
# Three shares under one path are unlikely; two isolated nodes show that each has its own.
_MAX_GROUPS = 3
_MAX_LONELY = 2


@dataclass(frozen=True, kw_only=True)
class WriteTrial:
    """A node's trial with its own file: `step` is where it failed, `write` or `map`, or empty."""

    step: Literal["", "write", "map"]
    error: Untrusted


@dataclass(frozen=True, kw_only=True)
class ExchangeReply:
    """A node's reply of one round; `name` is the file that it wrote, which the others read."""

    name: Annotated[str, Matching(r"[\w.-]*\w")] = ""
    nonce: Untrusted = NO_TEXT
    mapped: WriteTrial | None = None
    error: Untrusted = Untrusted("its output can't be parsed")

    @property
    def trial(self) -> WriteTrial:
        return self.mapped or WriteTrial(step="write", error=self.error)


@dataclass(frozen=True, kw_only=True)
class WorkdirSharing:
    """Groups of nodes that see each other's files, nodes without a group, and each node's trial."""

    groups: tuple[tuple[str, ...], ...] = ()
    alone: tuple[str, ...] = ()
    trials: Mapping[str, WriteTrial] = field(default_factory=dict)


def exchange_nonces(facts: Facts) -> Script[WorkdirSharing]:
    """Writes a nonce on one node and reads it on the others, until every node has a group or is alone."""
    places = _list_workdirs(facts)
    remaining = list(places)
    groups: list[tuple[str, ...]] = []
    alone: list[str] = []
    trials: dict[str, WriteTrial] = {}
    failed: set[str] = set()
    while len(groups) < _MAX_GROUPS and len(alone) < _MAX_LONELY:
        writer = next((name for name in remaining if places[name].writable and name not in failed), None)
        if writer is None:
            break
        written = _parse_exchange_reply((yield _build_round(facts, [writer], "write"))[writer])
        if not written.name or not written.nonce:
            failed.add(writer)
            trials[writer] = written.trial
            continue
        replies = yield _build_round(facts, remaining, "read", written.name)
        yield _build_round(facts, [writer], "remove", written.name)
        answers = {name: _parse_exchange_reply(reply) for name, reply in replies.items()}
        for name, answer in answers.items():
            trials.setdefault(name, answer.trial)
        mates = tuple(name for name in remaining if answers[name].nonce == written.nonce)
        if len(mates) > 1:
            groups.append(mates)
        else:
            alone.append(writer)
        remaining = [name for name in remaining if name not in mates and name != writer]
    return WorkdirSharing(groups=tuple(groups), alone=(*alone, *remaining), trials=trials)


EXCHANGE = MultiNodeProbe(name="storage-exchange", script=exchange_nonces, quick=False)


def find_unshared_workdir(facts: Facts) -> Iterator[Finding]:
    """A directory that some nodes share and one doesn't is a missing mount there."""
    sharing = _get_sharing(facts)
    lost = list_outsiders(facts)
    places = _list_workdirs(facts)
    if lost:
        inside = _select_sharing_nodes(facts, sharing)
        place, model = places[lost[0]], places[inside[0]]
        yield storage.NOT_SHARED.finding(
            nodes=lost,
            seen=f"{place} is not the {model} that {node_sets.fold_names(inside)} share: a file written on"
            f" {inside[0]} is missing there; this directory is {_describe_mount(place)}; the shared one is"
            f" {_describe_mount(model)}",
            fix=storage.NOT_SHARED.fix(how=format_mount_arguments(model.mount), nodes=quote_folded_names(lost)),
        )
    elif len(sharing.alone) > 1:
        yield storage.PRIVATE.finding(
            nodes=sharing.alone,
            seen=f"{places[sharing.alone[0]]} is not shared: each node has its own directory",
            fix=storage.PRIVATE.fix(),
        )


def find_unmappable_files(facts: Facts) -> Iterator[Finding]:
    """Datasets and weights are memory-mapped; some cloud and FUSE file systems don't support that."""
    for name, trial in _get_sharing(facts).trials.items():
        place, node, error = _list_workdirs(facts)[name], facts.cluster.node(name), trial.error.visible(500)
        if trial.step == "map":
            yield storage.NO_MMAP.finding(
                nodes=(name,),
                seen=f"a file in {place} ({_describe_mount(place)}) can't be mapped into memory: {error}",
                fix=storage.NO_MMAP.fix(
                    look=format_node_command(node, format_shell("findmnt -T {path}", path=place.path))
                ),
            )
        elif trial.step == "write" and error in {"No space left on device", "Disk quota exceeded"}:
            seen = f"{place} is not writable: {error}"
            shortage = SpaceShortage(diagnosis=storage.FULL, severity=Severity.BLOCK, path=place.path, seen=seen)
            if place.disk is not None and place.disk.free and place.disk.inodes_free:
                yield build_shortage_finding(facts, shortage, (name,))
        elif trial.step and place.writable:
            try_it = format_shell("cd {path} && touch .test && rm .test", path=place.path)
            yield storage.READ_ONLY.finding(
                nodes=(name,),
                seen=f"{place} is not writable: {error}",
                fix=storage.READ_ONLY.fix("try", try_it=format_node_command(node, try_it)),
            )


def list_outsiders(facts: Facts) -> tuple[str, ...]:
    """The nodes with a directory of their own where others share one."""
    sharing = _get_sharing(facts)
    inside = _select_sharing_nodes(facts, sharing)
    everyone = [name for group in sharing.groups for name in group] + list(sharing.alone)
    return tuple(node.name for node in facts.cluster if node.name in everyone and node.name not in inside)


def format_mount_arguments(mount: Mount) -> Shell:
    """The arguments of `mount`; for a local file system only its mount point, as /etc/fstab has the rest."""
    if not mount.network:
        return format_shell("{point}", point=mount.point)
    return format_shell("-t {type} {source} {point}", type=mount.type, source=mount.source, point=mount.point)


def _select_sharing_nodes(facts: Facts, sharing: WorkdirSharing) -> tuple[str, ...]:
    """The nodes with the right directory: the largest group, or those with a network mount when none share."""
    if sharing.groups:
        return max(sharing.groups, key=len)
    places = _list_workdirs(facts)
    remote = tuple(name for name in sharing.alone if places[name].mount.network)
    return remote if 2 * len(remote) >= len(sharing.alone) > 0 else sharing.alone


def _get_sharing(facts: Facts) -> WorkdirSharing:
    outcome = EXCHANGE.outcome(facts)
    return WorkdirSharing() if outcome is None or isinstance(outcome, Unknown) else outcome


def _list_workdirs(facts: Facts) -> dict[str, NodeDirectory]:
    """The working directories that exist."""
    answers = facts.of(STORAGE)
    return {name: each.workdir for name, each in answers.items() if each.workdir and each.workdir.disk}


def _build_round(facts: Facts, names: list[str], what: str, *words: str) -> Round:
    places = _list_workdirs(facts)
    asks = {}
    for name in names:
        wait = [str(NETWORK_WAIT if places[name].mount.network else 0)] if what == "read" else []
        node = facts.cluster.node(name)
        asks[name] = ProbeRequest.to_run(
            build_script_command(node, what, node.workdir or "", *words, *wait, timeout=_SECONDS)
        )
    return asks


def _parse_exchange_reply(reply: Mapping[str, Any] | Unknown) -> ExchangeReply:
    try:
        return decode(ExchangeReply, parse_script_output(parse_run_reply(reply)))
    except ProbeParseError as error:
        return ExchangeReply(error=Untrusted(str(error)))


def _describe_mount(directory: NodeDirectory) -> str:
    mount = directory.mount
    return mount.shown_source if mount.network else f"{mount.type} mounted at {mount}"
