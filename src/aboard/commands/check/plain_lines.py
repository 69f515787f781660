"""A check as plain lines, for grep and logs: each line is self-contained and starts with its kind.

block reach-refused n2 seen: ssh: connect to host n2 port 22: Connection refused
block reach-refused n2 why: The machine is up, but no ssh server listens on that port.
block reach-refused n2 fix: sudo systemctl start ssh    # on n2
block reach-refused n2 then: warn network-refused n1,n3: 2 links to n2 are refused
fine host: every host that responds is known
untested gpu: no NVIDIA GPU and no driver for one
collective all_reduce 1 MiB 3.1 ms 0.34 GB/s, bus 0.51 GB/s
node n1: 10.0.0.1, round trip 1.0 ms, clock +0.1 ms
done: 3 of 4 nodes reached; 1 finding would stop a run; 2.1 s
"""

from collections.abc import Iterator, Mapping, Sequence

from aboard.commands.check.collective_table import format_collective_lines
from aboard.commands.check.node_table import format_milliseconds, format_offset
from aboard.commands.shared.findings.finding_lines import format_finding_lines
from aboard.commands.shared.findings.subject_results import (
    SubjectStatus,
    format_conclusion,
    format_source_note,
    summarize_subjects,
)
from aboard.core.cluster.contact import UnreachedNode
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import escape_text


def format_check_lines(
    facts: Facts,
    subjects: Sequence[Subject],
    by_subject: Mapping[str, Sequence[Finding]],
    findings: Sequence[Finding],
    seconds: float,
) -> Iterator[str]:
    """The findings come in the given order and unmerged, so that grep finds every node and command."""
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
    for node in facts.cluster:
        contact = facts.contacts[node.name]
        if isinstance(contact, UnreachedNode):
            yield f"node {node.name}: no response, {contact.reason.value}"
        else:
            trip, clock = format_milliseconds(contact.round_trip), format_offset(contact.clock_offset)
            ranks = "" if node.interpreter is None else f", ranks use {escape_text(str(node.interpreter), 200)}"
            yield f"node {node.name}: {contact.address or contact.hostname}, round trip {trip}, clock {clock}{ranks}"
    yield f"done: {format_conclusion(facts, findings, outcomes)}; {seconds:.1f} s"
