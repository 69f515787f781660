"""The report of a check: on a terminal, as plain lines for grep and logs, and as JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.check.collective_table import CollectiveTable, format_collective_lines
from aboard.commands.check.node_table import CheckNodeTable, format_milliseconds, format_offset
from aboard.commands.shared.findings.finding_lines import format_finding_lines
from aboard.commands.shared.findings.findings_view import FindingsView
from aboard.commands.shared.findings.merge_findings import merge_findings
from aboard.commands.shared.findings.subject_results import (
    SubjectResult,
    SubjectStatus,
    format_conclusion,
    format_source_note,
    summarize_subjects,
)
from aboard.commands.shared.json_output import dump_json, to_plain_value
from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.status_marks import FINE, NOT_ASKED
from aboard.core.cluster.contact import ReachedNode, UnreachedNode
from aboard.core.cluster.interpreter import encode_interpreter
from aboard.core.cluster.node import Node
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.compute.subject import list_slots, name_slot


def format_check_lines(
    facts: Facts,
    subjects: Sequence[Subject],
    by_subject: Mapping[str, Sequence[Finding]],
    findings: Sequence[Finding],
    seconds: float,
) -> Iterator[str]:
    """Each line is self-contained and starts with its kind. Findings are unmerged, for grep to find every node.

    block reach-refused n2 seen: ssh: connect to host n2 port 22: Connection refused
    block reach-refused n2 fix: sudo systemctl start ssh    # on n2
    fine host: every host that responds is known
    untested gpu: no NVIDIA GPU and no driver for one
    done: 3 of 4 nodes reached; 1 finding would stop a run; 2.1 s
    """
    if note := format_source_note(facts):
        yield f"note: {note}"
    for finding in findings:
        yield from format_finding_lines(finding)
    outcomes = summarize_subjects(facts, subjects, by_subject)
    for each in outcomes:
        if each.status is SubjectStatus.PASSED:
            yield f"fine {each.subject.name}: {each.subject.title}{each.where and ' '}{each.where}"
        elif each.status is SubjectStatus.NOT_TESTED:
            yield f"untested {each.subject.name}: {each.reason}"
    yield from format_collective_lines(facts)
    yield from format_compute_lines(facts)
    for node in facts.cluster:
        contact = facts.contacts[node.name]
        if isinstance(contact, UnreachedNode):
            yield f"node {node.name}: no response, {contact.reason.value}"
        else:
            trip, clock = format_milliseconds(contact.round_trip), format_offset(contact.clock_offset)
            ranks = "" if node.interpreter is None else f", ranks use {escape_text(str(node.interpreter), 200)}"
            yield f"node {node.name}: {contact.address or contact.hostname}, round trip {trip}, clock {clock}{ranks}"
    yield f"done: {format_conclusion(facts, findings, outcomes)}; {seconds:.1f} s"


def format_compute_lines(facts: Facts) -> Iterator[str]:
    """The rates of each slot that was measured."""
    for (name, number), slot in list_slots(facts).items():
        yield f"compute {name} {name_slot(slot, number)}: {slot.describe()}"


def format_check_json(
    facts: Facts, outcomes: Iterable[SubjectResult], findings: Iterable[Finding], seconds: float
) -> str:
    """Everything a check found: facts by node, results of multi-node probes, subjects and findings."""
    return dump_json(
        {
            "source": facts.cluster.source,
            "seconds": round(seconds, 3),
            "nodes": [_describe_node(facts, node) for node in facts.cluster],
            "multi_node_probes": facts.outcomes,
            "subjects": {
                each.subject.name: {
                    "status": each.status.value,
                    "reason": each.reason,
                    "not_tested": dict(each.untested),
                }
                for each in outcomes
            },
            "findings": list(findings),
        }
    )


def _describe_node(facts: Facts, node: Node) -> dict[str, Any]:
    contact = facts.contacts[node.name]
    return {
        "name": node.name,
        "reached": isinstance(contact, ReachedNode),
        **to_plain_value(contact),
        "interpreter": encode_interpreter(node.interpreter),
        "facts": {probe: by_node[node.name] for probe, by_node in facts.answers.items() if node.name in by_node},
    }


class CheckReportView:
    """Print it with `crop=False`, so that long commands are not cut."""

    def __init__(
        self,
        facts: Facts,
        subjects: Sequence[Subject],
        by_subject: Mapping[str, Sequence[Finding]],
        findings: Sequence[Finding],
        *,
        seconds: float,
        verbose: bool,
    ) -> None:
        self._outcomes = summarize_subjects(facts, subjects, by_subject)
        self._table = CheckNodeTable(facts, by_subject, self._outcomes, every_node=verbose)
        merged = merge_findings(findings)
        self._findings = FindingsView(merged, in_full=verbose)
        self._collective = CollectiveTable(facts)
        self._compute = list(format_compute_lines(facts))
        self._last = f"{format_conclusion(facts, merged, self._outcomes)}.  {seconds:.1f} s"
        self._note = format_source_note(facts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table
        yield ""
        yield self._findings
        yield self._collective
        yield from (Text(line, style="dim") for line in self._compute)
        lines = [each for each in self._outcomes if each.status is not SubjectStatus.FINDINGS]
        widest = max((len(each.subject.name) for each in lines), default=0)
        for each in lines:
            passed = each.status is SubjectStatus.PASSED
            mark, style = (FINE, "green") if passed else (NOT_ASKED, "dim")
            label = Text.assemble((f"{mark.sign} ", mark.style), (each.subject.name.ljust(widest), style), "  ")
            text = f"{each.subject.title} {each.where}".rstrip() if passed else f"not tested: {each.reason}"
            yield from wrap_labelled(label, text, options.max_width, style="" if passed else "dim")
        yield self._last
        if self._note:
            yield from wrap_labelled(Text(), self._note, options.max_width, indent=2)
