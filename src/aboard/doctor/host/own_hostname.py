"""A node's own hostname: what it resolves to on the node itself, since ranks advertise that address."""

import re
from collections.abc import Iterator
from ipaddress import ip_address

from aboard.core.cluster.contact import ReachedNode
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand, ProbeParseError
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.doctor.host import diagnoses as host
from aboard.doctor.shared.answer_text import extract_stdout
from aboard.lazy_dataclass import dataclass

NOT_FOUND = 2  # getent(1)
# Characters that are special in a sed pattern; a dot is harmless, and names contain it.
_SPECIAL = re.compile(r"[][\\/*^$]")
_ESCAPED = r"\\\g<0>"


@dataclass(frozen=True, kw_only=True)
class OwnHostname:
    """The addresses in resolver order; empty when the name does not resolve."""

    name: Untrusted
    addresses: tuple[str, ...]


def parse_own_hostname(answer: ProbeAnswer) -> OwnHostname:
    """The name on the first line, then getent's lines: an address, a kind, perhaps the name."""
    lines = extract_stdout(answer, codes=(0, NOT_FOUND)).splitlines()
    if not lines or not lines[0].strip():
        raise ProbeParseError("the host has no name")
    addresses: dict[str, None] = {}
    for line in lines[1:]:
        address = Untrusted(line.partition(" ")[0]).as_address()
        if address is None:
            raise ProbeParseError(f"getent printed an unknown format: {escape_text(line)}")
        addresses[address] = None
    return OwnHostname(name=Untrusted(lines[0].strip()), addresses=tuple(addresses))


OWN_NAME = Probe(
    name="own-name",
    question=ProbeCommand(argv=("sh", "-c", "uname -n; exec getent ahosts $(uname -n)")),
    parse=parse_own_hostname,
)


def find_loopback_hostname(facts: Facts) -> Iterator[Finding]:
    """Ranks advertise the address of their own hostname; with 127.0.1.1 each peer connects to itself."""
    if len(facts.cluster) < 2:  # noqa: PLR2004 - alone, loopback is as good as any
        return
    for name, own in facts.of(OWN_NAME).items():
        first = ip_address(own.addresses[0]) if own.addresses else None
        if first is not None and not first.is_loopback:
            continue
        contact = facts.contacts.get(name)
        contact_address = contact.address if isinstance(contact, ReachedNode) else ""
        address = contact_address or facts.cluster.node(name).address or "ADDRESS"
        yield host.OWN_NAME.finding(
            nodes=(name,),
            seen=f"its own hostname {own.name.visible()} {f'resolves to {first}' if first else 'does not resolve'}",
            fix=host.OWN_NAME.fix(
                edit=rf"/^127\..*\b{_SPECIAL.sub(_ESCAPED, own.name.raw())}\b/d",
                line=f"{address} {own.name.raw()}",
                node=name,
            ),
        )


PROBES = (OWN_NAME,)
RULES = (find_loopback_hostname,)
