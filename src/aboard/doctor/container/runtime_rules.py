"""Rules about the runtime and the image: present on every node, usable by this user, the same everywhere."""

from collections.abc import Iterator, Sequence

from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_commands import format_image_copy, format_node_command, join_command_lines
from aboard.core.probes.facts import Facts
from aboard.core.text.byte_sizes import MIB, format_size
from aboard.diagnoses import Finding, Fix, Severity, Shell, format_shell
from aboard.doctor.container import (
    diagnoses as containers,
    image_diagnoses as container_images,
    inside_diagnoses as container_inside,
)
from aboard.doctor.container.container_facts import RUNTIME, NodeRuntime
from aboard.doctor.container.container_messages import build_start_findings
from aboard.doctor.shared.majority import group_by_value
from aboard.doctor.shared.node_difference import NodeDifference, find_common_value

_MAX_FIXES = 4
_DIGEST_CHARS = 12
# Unpacking less than this takes no time that anyone notices.
_LARGE_IMAGE = 256 * MIB
# Squashfs compresses programs and libraries to less than half.
_UNPACKED_FACTOR = 2.5


def find_missing_runtime(facts: Facts) -> Iterator[Finding]:
    """Nodes where this user's non-interactive shell does not find the runtime."""
    missing = {
        name: find_container(facts, name).runtime for name, each in facts.of(RUNTIME).items() if not each.runtime
    }
    for runtime, names in group_by_value(missing).items():
        yield containers.NO_RUNTIME.finding(
            nodes=names,
            seen=f"{runtime} is not on the PATH that ranks get",
            fix=containers.NO_RUNTIME.fix(runtime=runtime, node=names[0]),
        )


def find_missing_image(facts: Facts) -> Iterator[Finding]:
    """Nodes that lack the image, or whose user may not read it."""
    found = facts.of(RUNTIME)
    having = [name for name, each in found.items() if each.image]
    for kind, diagnosis in (
        ("missing", container_images.IMAGE_MISSING),
        ("unreadable", container_images.IMAGE_PERMISSION),
    ):
        images = {name: find_container(facts, name).image for name, each in found.items() if each.kind == kind}
        for image, names in group_by_value(images).items():
            container = find_container(facts, names[0])
            if kind == "missing":
                seen = (
                    f"{image} is not on this node"
                    if container.is_apptainer
                    else f"{container.runtime} has no image {image}"
                )
                fix = _fix_missing_image(facts, container, names, having)
            else:
                seen = found[names[0]].problem.visible(300)
                fix = diagnosis.fix(image=image, node=names[0])
            yield diagnosis.finding(nodes=names, seen=seen, fix=fix)


def find_unusable_runtime(facts: Facts) -> Iterator[Finding]:
    """Runtimes that can't list their images: no permission for the daemon, no subordinate ids, broken storage."""
    failed = {name: each.problem.lines() for name, each in facts.of(RUNTIME).items() if each.kind == "unusable"}
    yield from build_start_findings(facts, failed)


def find_differing_images(facts: Facts) -> Iterator[Finding]:
    """Nodes whose image differs from that of most nodes, or in a tie from the first node's."""
    found = {name: each for name, each in facts.of(RUNTIME).items() if each.image}
    by_image: dict[str, dict[str, NodeRuntime]] = {}
    for name, each in found.items():
        by_image.setdefault(find_container(facts, name).image, {})[name] = each
    for image, nodes in by_image.items():
        values = {name: each.image[:_DIGEST_CHARS] for name, each in nodes.items()}
        if len({each.image for each in nodes.values()}) > 1:
            usual = find_common_value({name: each.image for name, each in nodes.items()})
            odd = tuple(name for name, each in nodes.items() if each.image != usual)
            source = next(name for name, each in nodes.items() if each.image == usual)
            difference = NodeDifference(what=image, values=values, severity=Severity.BLOCK)
            yield container_inside.IMAGE_DIFFERS.finding(
                nodes=odd,
                seen=difference.sentence(),
                fix=container_inside.IMAGE_DIFFERS.fix(
                    "file" if find_container(facts, source).is_apptainer else "store",
                    lines=_format_copies(facts, facts.cluster.node(source), odd),
                ),
            )


def find_unpacked_images(facts: Facts) -> Iterator[Finding]:
    """Nodes where Apptainer can't mount the image; where there is no space to unpack it, no rank starts."""
    unpacked: dict[str, tuple[str, int]] = {}
    for name, each in facts.of(RUNTIME).items():
        container = find_container(facts, name)
        if each.kind != "file" or each.mountable:
            continue
        needed = int(each.size * _UNPACKED_FACTOR)
        if each.free is not None and each.free < needed:
            yield container_images.NO_SPACE.finding(
                nodes=(name,),
                severity=Severity.WARN,
                seen=f"{container.image} is unpacked before ranks start, which may need {format_size(needed)};"
                f" {format_size(each.free)} is free",
                fix=container_images.NO_SPACE.fix("unpack", node=name),
            )
        elif each.size >= _LARGE_IMAGE:
            unpacked[name] = container.image, each.size
    for (image, size), names in group_by_value(unpacked).items():
        runtime = find_container(facts, names[0]).runtime
        target = f"{image.removesuffix('.sif')}.unpacked"
        build = format_shell("{runtime} build --sandbox {target} {image}", runtime=runtime, target=target, image=image)
        yield container_inside.UNPACKING.finding(
            nodes=names,
            seen=f"{runtime} can't mount {image} ({format_size(size)}) here: Aboard unpacks it once per node",
            fix=container_inside.UNPACKING.fix(build=format_node_command(facts.cluster.node(names[0]), build)),
        )


def find_container(facts: Facts, name: str) -> Container:
    """The container of a node that has one."""
    container = facts.cluster.node(name).container
    if container is None:
        raise ValueError(f"{name} has no container")
    return container


def _fix_missing_image(facts: Facts, container: Container, names: Sequence[str], having: Sequence[str]) -> Fix:
    if having:
        lines = _format_copies(facts, facts.cluster.node(having[0]), names)
        return container_inside.IMAGE_DIFFERS.fix("file" if container.is_apptainer else "store", lines=lines)
    if container.is_apptainer:
        return container_images.IMAGE_MISSING.fix("file", image=container.image)
    return container_images.IMAGE_MISSING.fix(
        "store", nodes=names, node=names[0], runtime=container.runtime, image=container.image
    )


def _format_copies(facts: Facts, source: Node, names: Sequence[str]) -> Shell:
    """Copies the image from a node to others, through this machine."""
    replaceable = {name: each.replaceable for name, each in facts.of(RUNTIME).items()}
    lines = [
        format_image_copy(source, facts.cluster.node(name), as_root=not replaceable.get(name, True))
        for name in names[:_MAX_FIXES]
    ]
    return join_command_lines(lines, len(names) - _MAX_FIXES)
