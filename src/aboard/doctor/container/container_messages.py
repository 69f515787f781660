"""Names why a container does not start, from what the runtime printed."""

from collections.abc import Iterator, Mapping, Sequence

from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_commands import (
    enter_container,
    format_container_entry,
    format_node_command,
    get_setup_lines,
)
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Diagnosis, Finding, Fix, chain_commands, format_shell
from aboard.diagnoses.catalogue import list_output_patterns
from aboard.diagnoses.fixes import Value, list_blanks
from aboard.diagnoses.output_patterns import OutputPattern, PatternSource
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.container import diagnoses as containers, image_diagnoses as container_images
from aboard.doctor.shared.majority import group_by_value

_SHOWN = 300


def build_start_findings(facts: Facts, failed: Mapping[str, Sequence[Untrusted]]) -> Iterator[Finding]:
    """The findings for containers that do not start, by node with what was printed; one for each message."""
    by_line = group_by_value({name: match_messages(lines)[2] for name, lines in failed.items()})
    for line, names in by_line.items():
        node = facts.cluster.node(names[0])
        diagnosis, message, _line, named = match_messages([line])
        runtime = node.container.runtime if node.container is not None else "the runtime"
        yield diagnosis.finding(
            nodes=names,
            seen=f'a container does not start; {runtime} reports: "{line.visible(_SHOWN)}"',
            why=(message.why or None) if message is not None else None,
            fix=_build_fix(node, node.container, diagnosis, message, named),
        )


def match_messages(
    lines: Sequence[Untrusted],
) -> tuple[Diagnosis, OutputPattern | None, Untrusted, dict[str, str]]:
    """The diagnosis whose message is the most specific among these lines, and what it names."""
    source = PatternSource.LOG | PatternSource.DEATH
    for diagnosis, message in list_output_patterns(source, containers, container_images):
        for line in lines:
            if found := line.match(message.regex):
                named = {group.rstrip("234"): text for group, text in found.groupdict().items() if text}
                return diagnosis, message, line, named
    last = next((line for line in reversed(lines) if line.visible().strip()), Untrusted("it printed nothing"))
    return containers.NOT_STARTED, None, last, {}


def _build_fix(
    node: Node,
    container: Container | None,
    diagnosis: Diagnosis,
    pattern: OutputPattern | None,
    named: dict[str, str],
) -> Fix:
    values: dict[str, Value] = {**named, "node": node.name, "nodes": [node.name]}
    if container is not None:
        values |= {"runtime": container.runtime, "image": container.image}
        values |= {"enter": format_container_entry(node, container)}
    if diagnosis is containers.NOT_STARTED:
        run = enter_container(node, format_shell("true"))
        return diagnosis.fix("check", line=format_node_command(node, chain_commands(*get_setup_lines(node), run)))
    wanted = [pattern.fix if pattern is not None else "", "", "log"]
    variant = next(each for each in wanted if each in diagnosis.templates)
    blanks = list_blanks(diagnosis.templates[variant])
    return diagnosis.fix(variant, **{blank: values.get(blank, blank.upper()) for blank in blanks})
