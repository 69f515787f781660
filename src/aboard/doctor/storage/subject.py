"""Storage: the directories that a run needs exist, respond, have space, and are shared where they should be."""

from collections.abc import Iterator

from aboard.core.cluster import node_sets
from aboard.core.cluster.node_commands import format_node_command, join_command_lines
from aboard.core.cluster.node_sets import quote_folded_names
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.core.text.input_text import agree
from aboard.diagnoses import Finding, Severity, Shell, format_shell
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.diagnoses.nodes import unanswered_probes
from aboard.doctor.shared.majority import group_by_value
from aboard.doctor.shared.unknown_answers import list_unknown_diagnoses
from aboard.doctor.storage import diagnoses as storage, output_space, shared_workdir
from aboard.doctor.storage.free_space import find_space_shortages
from aboard.doctor.storage.node_storage import STORAGE, Mount, NodeDirectory


def find_missing_directories(facts: Facts) -> Iterator[Finding]:
    """A rank can't start without its working directory."""
    there = [name for name, place in _list_workdirs(facts).items() if place.disk]
    found = {
        name: (place.path, place.trouble)
        for name, place in _list_workdirs(facts).items()
        if place.trouble and not place.silent and place.mount not in facts.of(STORAGE)[name].dead
    }
    for (path, trouble), nodes in group_by_value(found).items():
        others = f"; {node_sets.fold_names(there)} {agree(there, 'has', 'have')} it" if there else " on any node"
        make = format_shell("mkdir -p {path}", path=path)
        lines = join_command_lines(format_node_command(facts.cluster.node(name), make) for name in nodes[:4])
        yield storage.MISSING.finding(
            nodes=nodes,
            seen=f"{path.visible(500)}: {trouble.visible(500)}{others}",
            fix=storage.MISSING.fix(lines=lines),
        )


def find_dead_mounts(facts: Facts) -> Iterator[Finding]:
    """A process that touches a mount whose server is gone hangs and can't be killed."""
    found: dict[tuple[Mount, str, bool], list[str]] = {}
    written = output_space.list_output_directories(facts)
    for name, node_storage in facts.of(STORAGE).items():
        places = [*node_storage.places.values(), *([written[name]] if name in written else [])]
        needed = {place.mount.point for place in places}
        for mount, why in node_storage.dead.items():
            found.setdefault((mount, why.visible(500), mount.point in needed), []).append(name)
        for place in node_storage.places.values():
            if place.silent and place.mount not in node_storage.dead:
                found.setdefault((place.mount, f"{place} does not respond", True), []).append(name)
    for (mount, why_text, needed_there), nodes in found.items():
        yield storage.DEAD_MOUNT.finding(
            severity=Severity.BLOCK if needed_there else Severity.WARN,
            nodes=tuple(nodes),
            seen=f"{mount} ({mount.shown_source}): {why_text}",
            fix=storage.DEAD_MOUNT.fix(
                point=mount.point, how=shared_workdir.format_mount_arguments(mount), nodes=quote_folded_names(nodes)
            ),
        )


def find_missing_mounts(facts: Facts) -> Iterator[Finding]:
    """A mount that failed at boot leaves an empty directory that looks like the real one."""
    for name, (place, mount, share) in _list_missing_mounts(facts).items():
        if name not in shared_workdir.list_outsiders(facts):
            yield storage.NOT_MOUNTED.finding(
                severity=Severity.BLOCK if mount.network else Severity.WARN,
                nodes=(name,),
                seen=f"nothing is mounted at {mount}, so {place} is part of {place.mount};"
                f" {share} nodes have {mount.type} mounted there",
                fix=storage.NOT_MOUNTED.fix(how=shared_workdir.format_mount_arguments(mount), node=name),
            )


def find_read_only_directories(facts: Facts) -> Iterator[Finding]:
    """A run can't save checkpoints or logs to a read-only directory."""
    answers = facts.of(STORAGE)
    # The directory under a missing mount isn't meant to be written to; the missing mount is the fault.
    beneath = {*shared_workdir.list_outsiders(facts), *_list_missing_mounts(facts)}
    found: dict[tuple[str, Shell], list[str]] = {}
    for name, each in answers.items():
        for role, place in each.places.items():
            if place.read_only:
                seen = f"{place} ({place.mount.type}) is mounted read-only"
                repair = format_shell("sudo mount -o remount,rw {point}", point=place.mount.point)
                found.setdefault((seen, repair), []).append(name)
            elif role == "workdir" and place.disk and not place.writable and name not in beneath:
                seen = f"user {each.uid} is not allowed to write to {place}, which user {place.owner} owns"
                repair = format_shell("sudo chown {uid} {path}", uid=each.uid, path=place.path)
                found.setdefault((seen, repair), []).append(name)
    for (seen, repair), nodes in found.items():
        # If it is so everywhere, it may be intended: code from an image, outputs elsewhere.
        everywhere = len(nodes) == len(answers)
        yield storage.READ_ONLY.finding(
            severity=Severity.INFO if everywhere else Severity.WARN,
            nodes=tuple(nodes),
            seen=seen,
            fix=storage.READ_ONLY.fix("mend", mend=repair, nodes=quote_folded_names(nodes)),
        )


def find_unknown_storage(facts: Facts) -> Iterator[Finding]:
    """Reports nodes whose storage is unknown."""
    fact = unanswered_probes.declare_unanswered(STORAGE.name)
    for name, answer in facts.unknown(STORAGE).items():
        yield fact.finding(
            nodes=(name,),
            seen=f"could not check its storage: {answer.why}",
            fix=fact.fix(line=format_node_command(facts.cluster.node(name), format_shell("timeout 5 df -h"))),
        )


def _list_workdirs(facts: Facts) -> dict[str, NodeDirectory]:
    return {name: each.workdir for name, each in facts.of(STORAGE).items() if each.workdir is not None}


def _list_missing_mounts(facts: Facts) -> dict[str, tuple[NodeDirectory, Mount, str]]:
    """The nodes that lack a mount on the directory's path that at least half have, and how many have it."""
    places = {name: place for name, place in _list_workdirs(facts).items() if place.disk}
    found = {}
    for name, place in places.items():
        alike = [each for each in places.values() if each.path == place.path]
        mounted = [each for each in alike if len(each.mount.point) > len(place.mount.point)]
        if mounted and 2 * len(mounted) >= len(alike):
            found[name] = (place, mounted[0].mount, f"{len(mounted)} of {len(alike)}")
    return found


SUBJECT = Subject(
    name="storage",
    title="directories exist, respond, have free space, and are shared as expected",
    probes=(STORAGE,),
    rules=(
        find_dead_mounts,
        find_missing_directories,
        shared_workdir.find_unshared_workdir,
        find_missing_mounts,
        output_space.find_insufficient_space,
        output_space.find_unwritable_output,
        find_space_shortages,
        find_read_only_directories,
        shared_workdir.find_unmappable_files,
        find_unknown_storage,
        output_space.find_unknown_space,
    ),
    multi_node_probes=(output_space.OUTPUT_SPACE, shared_workdir.EXCHANGE),
    diagnoses=(*list_diagnoses(storage), unanswered_probes.STORAGE_ROOM, *list_unknown_diagnoses((STORAGE,))),
)
