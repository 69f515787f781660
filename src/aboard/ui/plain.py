"""A check as plain lines, for grep and for logs: each line is whole in itself, and says what it is in its first word.

block reach-refused n2 seen: ssh: connect to host n2 port 22: Connection refused
block reach-refused n2 why: The machine is up, but no ssh server listens on that port.
block reach-refused n2 fix: sudo systemctl start ssh    # on n2
block reach-refused n2 then: warn network-refused n1,n3: 2 links to n2 are refused
fine host: every host that answers is known
untested gpu: no NVIDIA GPU and no driver for one
collective all_reduce 1 MiB 3.1 ms 0.34 GB/s, bus 0.51 GB/s
node n1: 10.0.0.1, round trip 1.0 ms, clock +0.1 ms
done: 3 of 4 nodes answer; 1 finding would stop a run; 2.1 s
"""

from collections.abc import Iterator, Mapping, Sequence

from aboard.core.facts import Facts
from aboard.core.reach import Unreached
from aboard.core.rule import Subject
from aboard.core.words import visible
from aboard.diagnoses import Finding
from aboard.ui.check_table import milliseconds, signed
from aboard.ui.collective_table import collective_lines
from aboard.ui.verdict import Status, here_only, subject_outcomes, verdict


def plain_lines(
    facts: Facts,
    subjects: Sequence[Subject],
    by_subject: Mapping[str, Sequence[Finding]],
    findings: Sequence[Finding],
    seconds: float,
) -> Iterator[str]:
    """Findings in the order given and never folded, so that each node's name and each command is there to be found."""
    if note := here_only(facts):
        yield f"note: {note}"
    for finding in findings:
        yield from finding_lines(finding)
    outcomes = subject_outcomes(facts, subjects, by_subject)
    for each in outcomes:
        if each.status is Status.PASSED:
            yield f"fine {each.subject.name}: {each.subject.title}{each.where and ' '}{each.where}"
        elif each.status is Status.NOT_TESTED:
            yield f"untested {each.subject.name}: {each.reason}"
    yield from collective_lines(facts)
    for node in facts.cluster:
        contact = facts.contacts[node.name]
        if isinstance(contact, Unreached):
            yield f"node {node.name}: no answer, {contact.reason.value}"
        else:
            trip, clock = milliseconds(contact.round_trip), signed(contact.clock_offset)
            ranks = "" if node.interpreter is None else f", ranks run {visible(str(node.interpreter), 200)}"
            yield f"node {node.name}: {contact.address or contact.hostname}, round trip {trip}, clock {clock}{ranks}"
    yield f"done: {verdict(facts, findings, outcomes)}; {seconds:.1f} s"


def finding_lines(finding: Finding) -> Iterator[str]:
    head = f"{_short(finding)} "
    for field, text in (("seen", finding.seen), ("why", finding.why), ("fix", finding.fix)):
        for line in text.splitlines():
            yield f"{head}{field}: {line}".rstrip()
    for consequence in finding.consequences:
        yield f"{head}then: {_short(consequence)}: {' '.join(consequence.seen.split())}"


def _short(finding: Finding) -> str:
    return f"{finding.severity.word} {finding.code} {','.join(finding.nodes) or 'all'}"
