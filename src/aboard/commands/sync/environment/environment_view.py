"""The result of `aboard sync --env`."""

from collections.abc import Iterator

from aboard.commands.shared.findings.setup_report import SetupReport
from aboard.commands.shared.json_output import dump_json
from aboard.core.cluster.node_sets import fold_names
from aboard.core.environment.sync_report import EnvironmentSyncResult, NodeEnvironmentResult
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import escape_text

_HEAD = "this machine"


def describe_environment(result: EnvironmentSyncResult) -> SetupReport:
    """The result for a terminal or a pipe."""
    return SetupReport(
        steps=list(_list_node_lines(result)),
        remarks=list(_list_remarks(result)),
        findings=list_environment_findings(result),
        conclusion=_format_conclusion(result),
        seconds=result.seconds,
    )


def format_environment_json(result: EnvironmentSyncResult) -> str:
    return dump_json(
        {
            "seconds": round(result.seconds, 3),
            "prefix": result.prefix,
            "packages": result.packages,
            "editable": result.projects,
            "not_copied": result.loose,
            "nodes": {
                name: {
                    "action": node.action,
                    "installed": node.installed,
                    "removed": node.removed,
                    "sent_bytes": node.sent,
                    "same_disk_as": node.same_disk_as,
                    "seconds": round(node.seconds, 3),
                }
                for name, node in result.nodes.items()
            },
            "findings": list_environment_findings(result),
        }
    )


def list_environment_findings(result: EnvironmentSyncResult) -> list[Finding]:
    """Each node that failed, and packages of base interpreters that differ."""
    failed = [
        error.diagnosis.finding(nodes=(name,), seen=error.seen, fix=error.fix, severity=Severity.BLOCK)
        for name, error in result.failures.items()
    ]
    return failed + [finding for node in result.nodes.values() for finding in node.findings]


def _list_node_lines(result: EnvironmentSyncResult) -> Iterator[str]:
    """Nodes with the same outcome share a line."""
    groups: dict[str, list[str]] = {}
    for name, node in result.nodes.items():
        groups.setdefault(_describe_node(node, dry=result.dry), []).append(name)
    for text, names in groups.items():
        yield f"{fold_names(names)}: {text}"


def _describe_node(node: NodeEnvironmentResult, *, dry: bool) -> str:
    if node.action == "unchanged":
        return "unchanged"
    if node.same_disk_as is not None:
        return f"on the disk of {node.same_disk_as or _HEAD}"
    verb = {"created": "would be created" if dry else "created", "updated": "would be updated" if dry else "updated"}
    counts = ((len(node.installed), "installed"), (len(node.removed), "removed"))
    return ", ".join([verb[node.action], *(f"{format_count(n, 'package')} {what}" for n, what in counts if n)])


def _list_remarks(result: EnvironmentSyncResult) -> Iterator[str]:
    for project in result.projects:
        yield f"{escape_text(project, 300)} is installed as editable here; nodes get a copy of its current files"
    if result.loose:
        yield f"not copied, since no package lists them: {', '.join(map(escape_text, result.loose))}"


def _format_conclusion(result: EnvironmentSyncResult) -> str:
    count = len(result.nodes) + len(result.failures)
    have = "would have" if result.dry else "have"
    return (
        f"{len(result.nodes)} of {format_count(count, 'node')} {have} {escape_text(result.prefix, 300)} with"
        f" {format_count(result.packages, 'package')}"
    )
