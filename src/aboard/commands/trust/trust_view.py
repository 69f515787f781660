"""`aboard trust` on a terminal, as plain lines, and as JSON."""

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from aboard.commands.shared.findings.setup_report import SetupReport
from aboard.commands.shared.json_output import dump_json
from aboard.core.cluster.node_sets import fold_names
from aboard.core.text.input_text import format_count
from aboard.core.trust.trust_report import NewHostKey, TrustReport, UndoReport


class HostKeyTable:
    """The host keys that the user has to compare."""

    def __init__(self, keys: Sequence[NewHostKey]) -> None:
        self._keys = keys

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield f"{format_count(len(self._keys), 'host key')} not seen before:"
        table = Table.grid(padding=(0, 2))
        for each in self._keys:
            table.add_row(f"  {each.node}", each.key.label, Text(each.key.fingerprint, no_wrap=True))
        yield table
        yield "Compare them with your cloud's console, or with the output of this command on each node:"
        yield Text("  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub", style="green")


def describe_trust(report: TrustReport | UndoReport) -> SetupReport:
    """The report for a terminal or a pipe."""
    return SetupReport(
        steps=list(_list_steps(report) if isinstance(report, TrustReport) else _list_undone(report)),
        findings=report.findings,
        conclusion=_format_conclusion(report),
        seconds=report.seconds,
        hint="To undo: aboard trust --undo" if isinstance(report, TrustReport) and not report.is_unchanged else "",
    )


def format_trust_json(report: TrustReport | UndoReport) -> str:
    if isinstance(report, UndoReport):
        return dump_json(report)
    return dump_json(
        {
            "seconds": round(report.seconds, 3),
            "nodes": report.nodes,
            "created_key": report.created,
            "pinned": [
                {"node": each.node, "type": each.key.label, "fingerprint": each.key.fingerprint}
                for each in report.pinned
            ],
            "mesh": report.mesh
            and {
                "created_keys": report.mesh.created,
                "lines": report.mesh.changed,
                "logins": report.mesh.logins,
                "tested": report.mesh.tested,
                "pairs": report.mesh.possible,
            },
            "findings": report.findings,
        }
    )


def _list_steps(report: TrustReport) -> Iterator[str]:
    installed = [node.name for node in report.nodes if node.installed and node.reached]
    before = [node.name for node in report.nodes if node.reached and not node.installed]
    if report.pinned:
        yield f"pinned {format_count(len(report.pinned), 'host key')} in known_hosts"
    if report.created:
        yield f"created the key {report.created}, without a passphrase"
    if installed:
        yield f"{fold_names(installed)}: key installed and verified"
    if before:
        yield f"{fold_names(before)}: this machine could already log in"
    mesh = report.mesh
    if mesh is not None:
        if mesh.created:
            yield f"mesh: created a key on {format_count(mesh.created, 'node')}"
        sample = "" if mesh.tested == mesh.possible else f" (a ring and a sample of {mesh.possible} pairs)"
        yield f"mesh: {mesh.logins} of {mesh.tested} logins between nodes work{sample}"


def _list_undone(report: UndoReport) -> Iterator[str]:
    if report.nodes:
        yield f"{fold_names(list(report.nodes))}: restored"
    if report.head:
        yield "this machine: restored"


def _format_conclusion(report: TrustReport | UndoReport) -> str:
    if isinstance(report, UndoReport):
        if not (report.nodes or report.head or report.findings):
            return "nothing to undo"
        return f"{format_count(len(report.nodes), 'node')} restored"
    reached = sum(node.reached for node in report.nodes)
    count = f"this machine can log in to {reached} of {format_count(len(report.nodes), 'node')}"
    nothing = "nothing was changed" if report.findings else "nothing to change"
    return f"{count}; {nothing}" if report.is_unchanged else count
