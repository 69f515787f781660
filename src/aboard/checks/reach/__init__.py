"""Reach: who answers, how long the login took, and what shell ranks get; for each that doesn't, what to type."""

import re
from collections.abc import Iterator, Sequence

from aboard.checks.reach import elsewhere, login
from aboard.checks.reach.shell import SHELL, failed_setup, lost_python
from aboard.checks.reach.words import login_of, ssh_words, values_of
from aboard.checks.usual import together
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.reach import NO_KEY, Reached, Unreached
from aboard.core.rule import Subject
from aboard.diagnoses import Finding, Fix, join_fixes, reach, unknown
from aboard.diagnoses.catalogue import diagnoses_in
from aboard.diagnoses.reason import Reason

# ssh(1) passes over such a key and then has none to offer.
_KEY_FILE = re.compile(r"Permissions [0-7]+ for '(.+)' are too open")


def unreachable(facts: Facts) -> Iterator[Finding]:
    """A node without an agent can't run a rank, so the run can't start; each reason has its own fix."""
    found: dict[tuple[Reason, str], list[str]] = {}
    for node in facts.cluster:
        contact = facts.contacts.get(node.name)
        if isinstance(contact, Unreached):
            # What is wrong with a key here is one thing, however many nodes it keeps away.
            here = NO_KEY if contact.said.startswith(NO_KEY) else _KEY_FILE.match(contact.said) and contact.said
            found.setdefault((contact.reason, here or node.name), []).append(node.name)
    for (reason, _), names in found.items():
        node, contact = facts.cluster.node(names[0]), facts.contacts[names[0]]
        if isinstance(contact, Unreached):
            diagnosis = reach.UNREACHED[reason]
            yield diagnosis.finding(
                nodes=tuple(names),
                seen=contact.said,
                fix=_first_key([facts.cluster.node(name) for name in names])
                if contact.said.startswith(NO_KEY)
                else _fix(facts, node, contact),
            )


def dropped_at_first(facts: Facts) -> Iterator[Finding]:
    """Logins that sshd dropped at first and that worked when tried again: it will be worse with more nodes."""
    for name, contact in facts.contacts.items():
        if isinstance(contact, Reached) and contact.drops:
            yield reach.DROPPED_AT_FIRST.finding(
                nodes=(name,),
                seen=f"sshd dropped {contact.drops} of {contact.drops + 1} logins",
                fix=reach.DROPPED_AT_FIRST.fix(node=name),
            )


def noisy_shell(facts: Facts) -> Iterator[Finding]:
    """A shell that prints at login breaks scp, rsync and git over ssh; we skip it, others won't."""
    for name, contact in facts.contacts.items():
        if isinstance(contact, Reached) and contact.noise:
            yield reach.NOISY_SHELL.finding(
                nodes=(name,),
                seen=f"before any command, the login shell prints: {contact.noise}",
                fix=reach.NOISY_SHELL.fix(node=name, ssh=ssh_words(facts.cluster.node(name))),
            )


def _fix(facts: Facts, node: Node, contact: Unreached) -> Fix:
    """What to type; the real value where ssh, or another node, has told it."""
    key = _KEY_FILE.match(contact.said)
    if contact.reason is Reason.KEY_REFUSED and key:
        return reach.KEY_REFUSED.fix("mode", path=key[1])
    newer = re.findall(r"/[\w./-]+/python3\.(?:9|[1-9][0-9])(?=\s|$)", contact.said)
    if contact.reason is Reason.OLD_PYTHON and newer:
        best = max(newer, key=lambda path: int(path.rpartition(".")[2]))
        return reach.OLD_PYTHON.fix("newer", path=best, node=node.name)
    address = elsewhere.address(facts, node) or "ADDRESS"
    return reach.UNREACHED[contact.reason].fix(**values_of(node), line=f"{address} {node.target}")


def _first_key(nodes: Sequence[Node]) -> Fix:
    """Makes a key, then brings it to all nodes, by one line for those that share a port."""
    lines = [reach.KEY_REFUSED.fix("make")]
    for port, names in together({node.name: node.port for node in nodes}).items():
        own = [node for node in nodes if node.name in names]
        targets = list(map(login_of, own))
        if len(own) == 1:
            lines.append(reach.KEY_REFUSED.fix("bring", ssh=ssh_words(own[0])))
        elif port is None:
            lines.append(reach.KEY_REFUSED.fix("bring-all", targets=targets))
        else:
            lines.append(reach.KEY_REFUSED.fix("bring-all-port", targets=targets, port=port))
    return join_fixes(*lines)


SUBJECT = Subject(
    name="reach",
    title="every node answers",
    probes=(),
    rules=(unreachable, dropped_at_first, noisy_shell, login.slow_login, failed_setup, lost_python),
    exercises=(elsewhere.ELSEWHERE, SHELL),
    stories=(*diagnoses_in(reach), unknown.SHELL),
)
