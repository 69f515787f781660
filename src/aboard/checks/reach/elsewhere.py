"""Names that mean nothing here and something elsewhere: a node that answers is asked for the address."""

from collections.abc import Mapping
from ipaddress import ip_address

from aboard.core.exercise import Ask, Exercise, Script
from aboard.core.facts import Facts, Unknown
from aboard.core.node import Node
from aboard.core.reach import Unreached
from aboard.core.words import carried
from aboard.diagnoses.reason import Reason
from aboard.diagnoses.untrusted import Untrusted

# One may have the same gap; more of them know no more.
_ASKED = 3
_NAMES = 16
_SECONDS = 3.0
_LOOK_UP = 'for name; do echo "of $name"; getent ahosts "$name"; done; true'


def ask_others(facts: Facts) -> "Script[Mapping[str, str]]":
    """Asks a few nodes for the names that could not be resolved here; nobody, when all could."""
    lost = {node.target: node.name for node in facts.cluster if _unresolved(facts, node)}
    found: dict[str, str] = {}
    for peer in [node.name for node in facts.reached()][:_ASKED]:
        names = [target for target, name in lost.items() if name not in found][:_NAMES]
        if names:
            fields = {"argv": ["sh", "-c", _LOOK_UP, "sh", *names], "timeout": _SECONDS}
            reply = (yield {peer: Ask(op="run", fields=fields, within=_SECONDS + 2)})[peer]
            told = "" if isinstance(reply, Unknown) else carried(reply.get("stdout"))
            for part in told.split("of ")[1:]:
                target, _, lines = part.partition("\n")
                if target in names and (usable := _first(lines)):
                    found[lost[target]] = usable
    return found


# It waits for nobody: where the links are closed already, the fix says ADDRESS.
ELSEWHERE = Exercise(name="elsewhere", script=ask_others, needs=lambda _node: False)


def address(facts: Facts, node: Node) -> str:
    """What other nodes make of its name; "" when nobody knows."""
    held = facts.outcome(ELSEWHERE)
    return "" if held is None or isinstance(held, Unknown) else held.get(node.name, "")


def _unresolved(facts: Facts, node: Node) -> bool:
    contact = facts.contacts.get(node.name)
    return isinstance(contact, Unreached) and contact.reason is Reason.UNRESOLVED


def _first(told: str) -> str:
    """The first address of getent's that others can use: a node's own name is often 127.0.1.1 there."""
    for line in told.splitlines():
        found = Untrusted(line.partition(" ")[0]).as_address()
        if found is not None and not ip_address(found).is_loopback and not ip_address(found).is_link_local:
            return found
    return ""
