"""Space for the run's output: what `run:` in aboard.yaml says it will write, against the free space there."""

from collections.abc import Iterator, Mapping

from aboard.core.cluster import node_sets
from aboard.core.cluster.cluster import PlannedWrites
from aboard.core.cluster.node_commands import format_node_command
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Script
from aboard.core.probes.probe import ProbeParseError
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.input_text import format_list
from aboard.diagnoses import Finding, Severity, format_shell
from aboard.diagnoses.nodes import unanswered_probes
from aboard.doctor.shared.script_probes import parse_run_reply
from aboard.doctor.storage import diagnoses as storage
from aboard.doctor.storage.node_storage import STORAGE, NodeDirectory, build_script_command, parse_directory
from aboard.node_scripts.storage_survey import MOUNT_SECONDS

_SECONDS = MOUNT_SECONDS + 5


def measure_output_space(facts: Facts) -> Script[Mapping[str, NodeDirectory | Unknown]]:
    """Probes every node that will have a rank; none when aboard.yaml doesn't say what the run writes."""
    wanted = facts.cluster.writes
    writers = [node for node in facts.list_reached() if node.slots != 0] if wanted else []
    if wanted is None or not writers:
        return {}
    replies = yield {
        node.name: ProbeRequest.to_run(build_script_command(node, "room", wanted.path, timeout=_SECONDS))
        for node in writers
    }
    found: dict[str, NodeDirectory | Unknown] = {}
    for name, reply in replies.items():
        try:
            found[name] = parse_directory(parse_run_reply(reply))
        except ProbeParseError as error:
            found[name] = Unknown(why=str(error))
    return found


OUTPUT_SPACE = MultiNodeProbe(name="storage-room", script=measure_output_space)


def list_output_directories(facts: Facts) -> dict[str, NodeDirectory]:
    """The run's output directory by node, where known."""
    return {name: place for name, place in _get_outcome(facts).items() if isinstance(place, NodeDirectory)}


def list_small_disks(facts: Facts) -> dict[str, NodeDirectory]:
    """The nodes whose disk has less room than the run needs."""
    wanted = facts.cluster.writes
    if wanted is None:
        return {}
    known = {name: place for name, place in list_output_directories(facts).items() if _is_writable(place)}
    # A file system that does not count its space reports 0 of 0.
    return {
        name: place for name, place in known.items() if place.disk and place.disk.size and place.disk.free < wanted.size
    }


def find_insufficient_space(facts: Facts) -> Iterator[Finding]:
    """A run that fills its disk loses the checkpoint that it is writing, hours later."""
    wanted = facts.cluster.writes
    disks: dict[tuple[object, ...], dict[str, NodeDirectory]] = {}
    for name, place in list_small_disks(facts).items():
        disks.setdefault(_identify_disk(place), {})[name] = place
    for places in disks.values():
        if wanted is not None:
            yield _build_space_finding(facts, wanted, places)


def find_unwritable_output(facts: Facts) -> Iterator[Finding]:
    """A run that can't write its output directory loses its results."""
    first = next((node.name for node in facts.cluster if node.slots != 0), "")
    dead = {name: node_storage.dead for name, node_storage in facts.of(STORAGE).items()}
    for name, place in list_output_directories(facts).items():
        if _is_writable(place) or place.silent or place.mount in dead.get(name, ()):
            continue
        trouble = place.trouble.visible(500) or (
            "mounted read-only" if place.read_only else f"owned by user {place.owner}"
        )
        yield storage.OUTPUT.finding(
            # Rank 0 is on the first node, and many programs write there alone.
            severity=Severity.BLOCK if name == first else Severity.WARN,
            nodes=(name,),
            seen=f"{place} ({place.mount.type} on {place.mount}) is not writable: {trouble}",
            fix=storage.OUTPUT.fix(
                look=format_node_command(facts.cluster.node(name), format_shell("namei -l {path}", path=place.path))
            ),
        )


def find_unknown_space(facts: Facts) -> Iterator[Finding]:
    """Reports space that could not be measured; it never counts as sufficient."""
    wanted = facts.cluster.writes
    dead = {name: node_storage.dead for name, node_storage in facts.of(STORAGE).items()}
    whys = {name: each.why for name, each in _get_outcome(facts).items() if isinstance(each, Unknown)}
    silent = {name: place for name, place in list_output_directories(facts).items() if place.silent}
    # A mount known to be dead has its own finding.
    whys |= {
        name: place.trouble.visible(500) for name, place in silent.items() if place.mount not in dead.get(name, ())
    }
    if whys and wanted is not None:
        first = next(iter(whys))
        look = format_shell("timeout 5 df -h {path}", path=wanted.path)
        yield unanswered_probes.STORAGE_ROOM.finding(
            nodes=tuple(whys),
            seen=f"could not check whether {wanted.path} has room for {format_size(wanted.size)}:"
            f" {format_list(sorted(set(whys.values())), 2)}",
            fix=unanswered_probes.STORAGE_ROOM.fix(look=format_node_command(facts.cluster.node(first), look)),
        )


def _get_outcome(facts: Facts) -> Mapping[str, NodeDirectory | Unknown]:
    outcome = OUTPUT_SPACE.outcome(facts)
    if isinstance(outcome, Unknown):
        return {node.name: outcome for node in facts.list_reached()}
    return outcome or {}


def _identify_disk(directory: NodeDirectory) -> tuple[object, ...]:
    """The key of a disk: nodes that share one share the shortage, even if they see slightly different free space."""
    return (
        (directory.mount.type, directory.mount.source) if directory.mount.network else (directory.mount, directory.disk)
    )


def _is_writable(directory: NodeDirectory) -> bool:
    return directory.disk is not None and directory.writable and not directory.read_only


def _build_space_finding(facts: Facts, wanted: PlannedWrites, places: Mapping[str, NodeDirectory]) -> Finding:
    names = tuple(places)
    # The lowest value: free space changes while the nodes measure it.
    place = min(places.values(), key=lambda place: place.disk.free if place.disk else 0)
    free, whole = (place.disk.free, place.disk.size) if place.disk else (0, 0)
    shared = f", shared by {node_sets.fold_names(names)}" if len(names) > 1 and place.mount.network else ""
    look = format_shell("du -xh --max-depth=1 {point} 2>/dev/null | sort -h | tail", point=place.mount.point)
    return storage.SPACE.finding(
        nodes=names,
        seen=f"the run will write {format_size(wanted.size)} to {wanted.path}; {format_size(free)} of"
        f" {format_size(whole)} is free there"
        f" ({place.mount.type} on {place.mount}{shared}), {format_size(wanted.size - free)} short",
        fix=storage.SPACE.fix(look=format_node_command(facts.cluster.node(names[0]), look)),
    )
