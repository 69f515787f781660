"""Reach: who answers, how long the login took, and what shell ranks get; for each that doesn't, what to type."""

import re
import shlex
from collections.abc import Iterator, Sequence

from aboard.checks.reach import elsewhere, login, shell
from aboard.checks.reach.words import STORIES, WORDS
from aboard.checks.usual import together
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.reach import NO_KEY, Reached, Unreached
from aboard.core.rule import Subject
from aboard.diagnoses import Finding, Severity
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
            yield Finding(
                code=f"reach-{reason.value}",
                severity=Severity.BLOCK,
                nodes=tuple(names),
                seen=contact.said,
                why=WORDS[reason].why,
                fix=_first_key([facts.cluster.node(name) for name in names])
                if contact.said.startswith(NO_KEY)
                else _fix(facts, node, contact),
            )


def dropped_at_first(facts: Facts) -> Iterator[Finding]:
    """Logins that sshd dropped at first and that worked when tried again: it will be worse with more nodes."""
    for name, contact in facts.contacts.items():
        if isinstance(contact, Reached) and contact.drops:
            told = WORDS[Reason.DROPPED]
            yield Finding(
                code="reach-dropped-at-first",
                severity=Severity.INFO,
                nodes=(name,),
                seen=f"sshd dropped {contact.drops} of {contact.drops + 1} logins",
                why=told.why,
                fix=told.fix.format(**_words(facts.cluster.node(name))),
            )


def noisy_shell(facts: Facts) -> Iterator[Finding]:
    """A shell that prints at login breaks scp, rsync and git over ssh; we skip it, others won't."""
    for name, contact in facts.contacts.items():
        if isinstance(contact, Reached) and contact.noise:
            yield Finding(
                code="reach-noisy-shell",
                severity=Severity.INFO,
                nodes=(name,),
                seen=f"before any command, the login shell prints: {contact.noise}",
                why="We skip it, but scp, rsync and git over ssh break on it.",
                fix=WORDS[Reason.SHELL_NOISE].fix.format(**_words(facts.cluster.node(name))),
            )


def _fix(facts: Facts, node: Node, contact: Unreached) -> str:
    """What to type; the real value where ssh, or another node, has told it."""
    key = _KEY_FILE.match(contact.said)
    if contact.reason is Reason.KEY_REFUSED and key:
        return f"chmod 600 {shlex.quote(key[1])}    # here; ssh doesn't use a key that others may read"
    newer = re.findall(r"/[\w./-]+/python3\.(?:9|[1-9][0-9])(?=\s|$)", contact.said)
    if contact.reason is Reason.OLD_PYTHON and newer:
        best = max(newer, key=lambda path: int(path.rpartition(".")[2]))
        return f"python: {best}    # in aboard.yaml, for {node.name}; or another one that has your packages"
    return WORDS[contact.reason].fix.format(**{**_words(node), "address": elsewhere.address(facts, node) or "ADDRESS"})


def _first_key(nodes: Sequence[Node]) -> str:
    """Makes a key, then brings it to all nodes, by one line for those that share a port."""
    lines = ["ssh-keygen -t ed25519    # here; it asks where to keep it and for a passphrase"]
    for port, names in together({node.name: node.port for node in nodes}).items():
        targets = [f"{node.user}@{node.target}" if node.user else node.target for node in nodes if node.name in names]
        copy = "ssh-copy-id " + ("" if port is None else f"-p {port} ")
        loop = f"for node in {' '.join(targets)}; do {copy}$node; done" if len(targets) > 1 else copy + targets[0]
        lines.append(f"{loop}    # here; it asks for your password there")
    return "\n".join(lines)


def _words(node: Node) -> dict[str, str]:
    port = str(node.port or 22)
    target = f"{node.user}@{node.target}" if node.user else node.target
    return {
        "node": node.name,
        "target": node.target,
        "python": node.python,
        "port": port,
        "ssh": target if node.port is None else f"-p {port} {target}",
        "known": node.target if node.port is None else f"'[{node.target}]:{port}'",
    }


SUBJECT = Subject(
    name="reach",
    title="every node answers",
    probes=(),
    rules=(unreachable, dropped_at_first, noisy_shell, login.slow_login, shell.failed_setup, shell.lost_python),
    exercises=(elsewhere.ELSEWHERE, shell.SHELL),
    stories=(*STORIES, *login.STORIES, *shell.STORIES),
)
