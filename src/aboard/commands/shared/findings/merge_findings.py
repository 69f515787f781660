"""Merges equal findings on many nodes into one."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from aboard.commands.shared.copyable_commands import split_remark
from aboard.core.cluster.node_sets import fold_names
from aboard.diagnoses import Finding, Fix

_NAME = "\0"


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Merges findings that differ only in the node's name."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        name = finding.nodes[0] if len(finding.nodes) == 1 else ""
        shape = tuple(_blank_name(text, name) for text in (finding.seen, finding.why, finding.fix))
        groups.setdefault((finding.code, finding.severity, finding.consequences, shape), []).append(finding)
    return [_join_group(group) for group in groups.values()]


def _join_group(group: list[Finding]) -> Finding:
    first = group[0]
    if len(group) == 1:
        return first
    name = first.nodes[0] if len(first.nodes) == 1 else ""
    seen, why, fix = (_blank_name(text, name) for text in (first.seen, first.why, first.fix))
    nodes = tuple(dict.fromkeys(node for finding in group for node in finding.nodes))
    return replace(
        first,
        nodes=nodes,
        ranks=tuple(rank for finding in group for rank in finding.ranks),
        seen=seen.replace(_NAME, fold_names(nodes)),
        why=why.replace(_NAME, fold_names(nodes)),
        fix=Fix("\n".join(_repeat_for_nodes(line, nodes) for line in fix.splitlines()), is_advice=first.fix.is_advice),
    )


def _repeat_for_nodes(line: str, nodes: Sequence[str]) -> str:
    """The line for all nodes: a loop if its command names the node, or one line each if it is in single quotes."""
    command, mark, remark = split_remark(line)
    *before_names, _ = accumulate(command.split(_NAME))
    if any(before.count("'") % 2 for before in before_names):
        return "\n".join(line.replace(_NAME, node) for node in nodes)
    if _NAME in command:
        command = f"for node in {' '.join(nodes)}; do {command.replace(_NAME, '$node')}; done"
    return command + mark + remark.replace(_NAME, fold_names(nodes))


def _blank_name(text: str, name: str) -> str:
    """Replaces the node's name with a placeholder, as a whole word only: not `n1` in `n10`."""
    return re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", _NAME, text) if name else text
