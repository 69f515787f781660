"""Reach: which nodes are reachable, how long the login takes, and which shell ranks get."""

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from itertools import pairwise

from aboard.core.cluster.cluster import COMMAND_LINE, Cluster
from aboard.core.cluster.contact import NO_KEY, ReachedNode, UnreachedNode
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Script
from aboard.core.text.input_text import decode_latin1
from aboard.diagnoses import Finding, Fix, Shell, format_shell
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.diagnoses.fixes import Value
from aboard.diagnoses.nodes import reach, unanswered_probes
from aboard.diagnoses.slurm import steps
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.reach.rank_shell import SHELL, find_failed_setup, find_lost_python

# ssh(1) skips such a key and then has none to offer.
_KEY_FILE = re.compile(r"Permissions [0-7]+ for '(.+)' are too open")

# Why no step starts on any node.
_REASONS_OF_ALL = frozenset(
    {
        UnreachableReason.NO_SSH,
        UnreachableReason.NO_SRUN,
        UnreachableReason.NO_SLURMCTLD,
        UnreachableReason.MUNGE,
        UnreachableReason.JOB_ENDED,
        UnreachableReason.SRUN_PORTS,
    }
)

SLOW_SECONDS = 3.0
# The head's own load: a handshake takes up to 150 ms of a core, and 64 run at once.
OWN_SECONDS = 0.2
MOST_AT_ONCE = 64

# In login order: what took the time, and the variant of the fix.
_PHASES = {
    "connected": ("the TCP connection", "connect"),
    "greeted": ("the sshd banner", "greeting"),
    "keys": ("the key exchange", "keys"),
    "logged-in": ("authentication", "login"),
    "agent": ("starting the shell and Python", "shell"),
}

# One node may have the same gap; more than a few add nothing.
_MAX_LOOKUP_NODES = 3
_MAX_LOOKUP_NAMES = 16
_LOOKUP_SECONDS = 3.0
_LOOK_UP = 'for name; do echo "of $name"; getent ahosts "$name"; done; true'


def find_unreachable_nodes(facts: Facts) -> Iterator[Finding]:
    """A node without an agent can't run a rank, so the run can't start; each reason has its own fix."""
    found: dict[tuple[UnreachableReason, str], list[str]] = {}
    for node in facts.cluster:
        contact = facts.contacts.get(node.name)
        if isinstance(contact, UnreachedNode):
            # A bad key on the head is one finding, however many nodes it affects; so is a job that has ended.
            here = NO_KEY if contact.said.startswith(NO_KEY) else _KEY_FILE.match(contact.said) and contact.said
            of_all = here or (contact.reason.value if contact.reason in _REASONS_OF_ALL else "")
            found.setdefault((contact.reason, of_all or node.name), []).append(node.name)
    # A job may have ended because of a node that is named, too.
    for (reason, _), names in sorted(found.items(), key=lambda each: each[0][0] is UnreachableReason.JOB_ENDED):
        node, contact = facts.cluster.node(names[0]), facts.contacts[names[0]]
        if isinstance(contact, UnreachedNode):
            diagnosis = reach.UNREACHED[reason]
            yield diagnosis.finding(
                nodes=tuple(names),
                seen=contact.said,
                fix=reach.KEY_REFUSED.fix("make", trust=_format_trust_command(facts.cluster))
                if contact.said.startswith(NO_KEY)
                else _build_fix(facts, node, contact),
            )


def find_dropped_logins(facts: Facts) -> Iterator[Finding]:
    """Logins that sshd dropped and that worked on the retry: more nodes make it worse."""
    for name, contact in facts.contacts.items():
        # A step that another node ended is not sshd's doing.
        ssh = facts.cluster.node(name).transport is TransportKind.SSH
        if isinstance(contact, ReachedNode) and contact.drops and ssh:
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
                seen=f"the login shell prints text before it runs a command: {contact.noise}",
                fix=reach.NOISY_SHELL.fix(node=name, ssh=format_ssh_arguments(facts.cluster.node(name))),
            )


def find_slow_logins(facts: Facts) -> Iterator[Finding]:
    """Every launch pays for a slow login; it is often the first sign of a dead DNS server or home directory."""
    took = {
        name: _compute_durations(contact)
        for name, contact in facts.contacts.items()
        if isinstance(contact, ReachedNode)
    }
    most = OWN_SECONDS * min(len(took), MOST_AT_ONCE)
    for phase, (what, variant) in _PHASES.items():
        seconds = {name: durations[phase] for name, durations in took.items() if phase in durations}
        late = [name for name in seconds if seconds[name] >= SLOW_SECONDS]
        slow = [name for name in late if seconds[name] - _estimate_own_load(seconds, name, most) >= SLOW_SECONDS]
        for name in slow:
            node = facts.cluster.node(name)
            yield reach.SLOW_LOGIN.finding(
                nodes=(name,),
                seen=f"{what} took {seconds[name]:.1f} s",
                fix=reach.SLOW_LOGIN.fix(variant, node=name, target=node.target, python=node.python),
            )


def ask_other_nodes(facts: Facts) -> "Script[Mapping[str, str]]":
    """Queries a few nodes for the names that the head could not resolve; none when all resolved."""
    unresolved_names = {node.target: node.name for node in facts.cluster if _is_unresolved(facts, node)}
    found: dict[str, str] = {}
    for peer in [node.name for node in facts.list_reached()][:_MAX_LOOKUP_NODES]:
        names = [target for target, name in unresolved_names.items() if name not in found][:_MAX_LOOKUP_NAMES]
        if names:
            fields = {"argv": ["sh", "-c", _LOOK_UP, "sh", *names], "timeout": _LOOKUP_SECONDS}
            reply = (yield {peer: ProbeRequest(op="run", fields=fields, within=_LOOKUP_SECONDS + 2)})[peer]
            stdout = "" if isinstance(reply, Unknown) else decode_latin1(reply.get("stdout"))
            for part in stdout.split("of ")[1:]:
                target, _, lines = part.partition("\n")
                if target in names and (usable := _parse_first_address(lines)):
                    found[unresolved_names[target]] = usable
    return found


# Optional: where the links are closed already, the fix says ADDRESS.
ADDRESS_LOOKUP = MultiNodeProbe(name="elsewhere", script=ask_other_nodes, needs=lambda _node: False)


def _build_fix(facts: Facts, node: Node, contact: UnreachedNode) -> Fix:
    """The fix, with the real value where ssh or another node reported it."""
    key = _KEY_FILE.match(contact.said)
    if contact.reason is UnreachableReason.KEY_REFUSED and key:
        return reach.KEY_REFUSED.fix("mode", path=key[1])
    if contact.reason is UnreachableReason.OLD_PYTHON and (newer := _find_newer_python(facts, node, contact)):
        return reach.OLD_PYTHON.fix("newer", path=newer, node=node.name)
    diagnosis = reach.UNREACHED[contact.reason]
    if contact.reason is UnreachableReason.UNRESOLVED and (address := _get_known_address(facts, node)):
        return diagnosis.fix("known", line=f"{address} {node.target}", node=node.name)
    variant = "srun" if node.transport is TransportKind.SLURM and "srun" in diagnosis.templates else ""
    return diagnosis.fix(variant, **_build_fix_values(node), trust=_format_trust_command(facts.cluster))


def _find_newer_python(facts: Facts, node: Node, contact: UnreachedNode) -> str:
    """The Python of all other nodes' ranks, whose packages this node needs, too; else the newest that it listed."""
    ranks = {each.rank_python for each in facts.list_reached() if each.container is None}
    if len(ranks) == 1 and (path := ranks.pop()).startswith("/") and path != node.python:
        return path
    newer = re.findall(r"(?<![\w./-])/[\w./-]+/python3\.(?:9|[1-9][0-9])(?=\s|$)", contact.said)
    return max(newer, key=lambda path: int(path.rpartition(".")[2]), default="")


def _build_fix_values(node: Node) -> dict[str, Value]:
    """The values that fixes for an unreachable node need."""
    return {
        "node": node.name,
        "target": node.target,
        "port": node.port or 22,
        "ssh": format_ssh_arguments(node),
        "known": node.target if node.port is None else f"[{node.target}]:{node.port}",
        "find": _format_python_lookup(node),
        "ask": format_shell("{python} --version", python=node.python),
        "python": node.python,
        "lookup": format_shell("command -v {python}", python=node.python),
    }


def _format_trust_command(cluster: Cluster) -> Shell:
    """`aboard trust` for all nodes, as they were given: it changes nothing on those that work."""
    if cluster.source == "aboard.yaml":
        return format_shell("aboard trust")
    if cluster.source.endswith((".yaml", ".yml")):
        return format_shell("aboard trust {file}", file=cluster.source)
    if cluster.source and cluster.source != COMMAND_LINE:
        return format_shell("aboard trust --hostfile {file}", file=cluster.source)
    return format_shell("aboard trust {nodes:words}", nodes=list(map(_format_login, cluster)))


def format_ssh_arguments(node: Node) -> Shell:
    """The arguments of `ssh`."""
    if node.port is None:
        return format_shell("{login}", login=_format_login(node))
    return format_shell("-p {port} {login}", port=node.port, login=_format_login(node))


def _format_login(node: Node) -> str:
    return f"{node.user}@{node.target}" if node.user else node.target


def _format_python_lookup(node: Node) -> Shell:
    """One ssh argument that locates the node's Python in a login shell."""
    find = format_shell("bash -lc {find}", find=format_shell("command -v {python}", python=node.python))
    # Double quotes are easier to read, where they are sufficient.
    return Shell(f'"{find}"') if not set(find) & set('"$`\\!') else format_shell("{find}", find=find)


def _get_known_address(facts: Facts, node: Node) -> str:
    """The address that other nodes resolve its name to; "" when none does."""
    outcome = ADDRESS_LOOKUP.outcome(facts)
    return "" if outcome is None or isinstance(outcome, Unknown) else outcome.get(node.name, "")


def _is_unresolved(facts: Facts, node: Node) -> bool:
    contact = facts.contacts.get(node.name)
    return isinstance(contact, UnreachedNode) and contact.reason is UnreachableReason.UNRESOLVED


def _parse_first_address(text: str) -> str:
    """The first address from getent that others can use: a node's own name is often 127.0.1.1."""
    for line in text.splitlines():
        found = Untrusted(line.partition(" ")[0]).as_address()
        if found is not None and not ip_address(found).is_loopback and not ip_address(found).is_link_local:
            return found
    return ""


def _estimate_own_load(seconds: dict[str, float], name: str, most: float) -> float:
    """The part that the head's own load may explain: the third quartile of the other nodes, up to `most`."""
    others = sorted(other for node, other in seconds.items() if node != name)
    return min(others[len(others) * 3 // 4], most) if others else 0.0


def _compute_durations(contact: ReachedNode) -> dict[str, float]:
    """How long each phase took; a phase without a time stamp counts toward the next one."""
    ends = [("", 0.0), *((phase, contact.phases[phase]) for phase in _PHASES if phase in contact.phases)]
    return {phase: end - before for (_, before), (phase, end) in pairwise(ends)}


SUBJECT = Subject(
    name="reach",
    title="every node is reachable",
    probes=(),
    rules=(
        find_unreachable_nodes,
        find_dropped_logins,
        find_noisy_shells,
        find_slow_logins,
        find_failed_setup,
        find_lost_python,
    ),
    multi_node_probes=(ADDRESS_LOOKUP, SHELL),
    diagnoses=(*list_diagnoses(reach), *list_diagnoses(steps), unanswered_probes.SHELL),
)
