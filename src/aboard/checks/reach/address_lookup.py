"""Names that mean nothing here and something elsewhere: a node that answers is asked for the address."""

from collections.abc import Mapping
from ipaddress import ip_address

from aboard.core.cluster.contact import UnreachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Script
from aboard.core.text.input_text import decode_latin1
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import Untrusted

# One node may have the same gap; more than a few add nothing.
_MAX_NODES = 3
_MAX_NAMES = 16
_SECONDS = 3.0
_LOOK_UP = 'for name; do echo "of $name"; getent ahosts "$name"; done; true'


def ask_other_nodes(facts: Facts) -> "Script[Mapping[str, str]]":
    """Queries a few nodes for the names that the head could not resolve; none when all resolved."""
    unresolved_names = {node.target: node.name for node in facts.cluster if _is_unresolved(facts, node)}
    found: dict[str, str] = {}
    for peer in [node.name for node in facts.reached()][:_MAX_NODES]:
        names = [target for target, name in unresolved_names.items() if name not in found][:_MAX_NAMES]
        if names:
            fields = {"argv": ["sh", "-c", _LOOK_UP, "sh", *names], "timeout": _SECONDS}
            reply = (yield {peer: ProbeRequest(op="run", fields=fields, within=_SECONDS + 2)})[peer]
            stdout = "" if isinstance(reply, Unknown) else decode_latin1(reply.get("stdout"))
            for part in stdout.split("of ")[1:]:
                target, _, lines = part.partition("\n")
                if target in names and (usable := _parse_first_address(lines)):
                    found[unresolved_names[target]] = usable
    return found


# Optional: where the links are closed already, the fix says ADDRESS.
ADDRESS_LOOKUP = MultiNodeProbe(name="elsewhere", script=ask_other_nodes, needs=lambda _node: False)


def get_known_address(facts: Facts, node: Node) -> str:
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
