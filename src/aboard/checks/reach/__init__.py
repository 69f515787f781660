"""Reach: which nodes are reachable, how long the login takes, and which shell ranks get."""

import re
from collections.abc import Iterator, Sequence

from aboard.checks.majority import group_by_value
from aboard.checks.reach import address_lookup, login_time
from aboard.checks.reach.rank_shell import SHELL, find_failed_setup, find_lost_python
from aboard.checks.reach.ssh_fix_values import build_fix_values, format_login, format_ssh_arguments
from aboard.core.cluster.contact import NO_KEY, ReachedNode, UnreachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding, Fix, join_fixes
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.diagnoses.nodes import reach, unanswered_probes
from aboard.diagnoses.unreachable_reason import UnreachableReason

# ssh(1) skips such a key and then has none to offer.
_KEY_FILE = re.compile(r"Permissions [0-7]+ for '(.+)' are too open")


def find_unreachable_nodes(facts: Facts) -> Iterator[Finding]:
    """A node without an agent can't run a rank, so the run can't start; each reason has its own fix."""
    found: dict[tuple[UnreachableReason, str], list[str]] = {}
    for node in facts.cluster:
        contact = facts.contacts.get(node.name)
        if isinstance(contact, UnreachedNode):
            # A bad key on the head is one finding, however many nodes it affects.
            here = NO_KEY if contact.said.startswith(NO_KEY) else _KEY_FILE.match(contact.said) and contact.said
            found.setdefault((contact.reason, here or node.name), []).append(node.name)
    for (reason, _), names in found.items():
        node, contact = facts.cluster.node(names[0]), facts.contacts[names[0]]
        if isinstance(contact, UnreachedNode):
            diagnosis = reach.UNREACHED[reason]
            yield diagnosis.finding(
                nodes=tuple(names),
                seen=contact.said,
                fix=_fix_missing_key([facts.cluster.node(name) for name in names])
                if contact.said.startswith(NO_KEY)
                else _build_fix(facts, node, contact),
            )


def find_dropped_logins(facts: Facts) -> Iterator[Finding]:
    """Logins that sshd dropped and that worked on the retry: more nodes make it worse."""
    for name, contact in facts.contacts.items():
        if isinstance(contact, ReachedNode) and contact.drops:
            yield reach.DROPPED_AT_FIRST.finding(
                nodes=(name,),
                seen=f"sshd dropped {contact.drops} of {contact.drops + 1} logins",
                fix=reach.DROPPED_AT_FIRST.fix(node=name),
            )


def find_noisy_shells(facts: Facts) -> Iterator[Finding]:
    """A shell that prints at login breaks scp, rsync and git over ssh; only Aboard skips such output."""
    for name, contact in facts.contacts.items():
        if isinstance(contact, ReachedNode) and contact.noise:
            yield reach.NOISY_SHELL.finding(
                nodes=(name,),
                seen=f"the login shell prints before any command: {contact.noise}",
                fix=reach.NOISY_SHELL.fix(node=name, ssh=format_ssh_arguments(facts.cluster.node(name))),
            )


def _build_fix(facts: Facts, node: Node, contact: UnreachedNode) -> Fix:
    """The fix, with the real value where ssh or another node reported it."""
    key = _KEY_FILE.match(contact.said)
    if contact.reason is UnreachableReason.KEY_REFUSED and key:
        return reach.KEY_REFUSED.fix("mode", path=key[1])
    newer = re.findall(r"/[\w./-]+/python3\.(?:9|[1-9][0-9])(?=\s|$)", contact.said)
    if contact.reason is UnreachableReason.OLD_PYTHON and newer:
        best = max(newer, key=lambda path: int(path.rpartition(".")[2]))
        return reach.OLD_PYTHON.fix("newer", path=best, node=node.name)
    address = address_lookup.get_known_address(facts, node) or "ADDRESS"
    return reach.UNREACHED[contact.reason].fix(**build_fix_values(node), line=f"{address} {node.target}")


def _fix_missing_key(nodes: Sequence[Node]) -> Fix:
    """Creates a key and copies it to all nodes, with one line for those that share a port."""
    lines = [reach.KEY_REFUSED.fix("make")]
    for port, names in group_by_value({node.name: node.port for node in nodes}).items():
        own = [node for node in nodes if node.name in names]
        targets = list(map(format_login, own))
        if len(own) == 1:
            lines.append(reach.KEY_REFUSED.fix("bring", ssh=format_ssh_arguments(own[0])))
        elif port is None:
            lines.append(reach.KEY_REFUSED.fix("bring-all", targets=targets))
        else:
            lines.append(reach.KEY_REFUSED.fix("bring-all-port", targets=targets, port=port))
    return join_fixes(*lines)


SUBJECT = Subject(
    name="reach",
    title="every node is reachable",
    probes=(),
    rules=(
        find_unreachable_nodes,
        find_dropped_logins,
        find_noisy_shells,
        login_time.find_slow_logins,
        find_failed_setup,
        find_lost_python,
    ),
    multi_node_probes=(address_lookup.ADDRESS_LOOKUP, SHELL),
    diagnoses=(*list_diagnoses(reach), unanswered_probes.SHELL),
)
