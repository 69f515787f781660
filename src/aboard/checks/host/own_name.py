"""A node's own name: what it resolves to on the node itself, since ranks tell their peers that address."""

from collections.abc import Iterator
from ipaddress import ip_address

from aboard.checks.answer import printed
from aboard.core.facts import Facts
from aboard.core.probe import Answer, Command, Probe, Unparsed
from aboard.core.reach import Reached
from aboard.core.rule import Subject
from aboard.core.words import visible
from aboard.diagnoses import Diagnosis, Finding, Severity
from aboard.lazy import dataclass

NOT_FOUND = 2  # getent(1)


@dataclass(frozen=True, kw_only=True)
class OwnName:
    """The addresses, in the order in which a program gets them; none when the name means nothing there."""

    name: str
    addresses: tuple[str, ...]


def parse_own_name(answer: Answer) -> OwnName:
    """The name on the first line, then what getent printed: an address, a kind, perhaps the name."""
    lines = printed(answer, codes=(0, NOT_FOUND)).splitlines()
    if not lines or not lines[0].strip():
        raise Unparsed("a host without a name")
    addresses: dict[str, None] = {}
    for line in lines[1:]:
        word = line.split()[0] if line.split() else ""
        try:
            addresses[str(ip_address(word.partition("%")[0]))] = None
        except ValueError:
            raise Unparsed(f"getent answered in a way that is not known: {visible(line)}") from None
    return OwnName(name=visible(lines[0].strip()), addresses=tuple(addresses))


OWN_NAME = Probe(
    name="own-name",
    question=Command(argv=("sh", "-c", "uname -n; exec getent ahosts $(uname -n)")),
    parse=parse_own_name,
)


def own_name_on_loopback(facts: Facts) -> Iterator[Finding]:
    """Ranks tell peers the address that their own host name has; 127.0.1.1 leads each peer to itself."""
    if len(facts.cluster) < 2:  # noqa: PLR2004 - alone, loopback is as good as any
        return
    for name, own in facts.of(OWN_NAME).items():
        first = ip_address(own.addresses[0]) if own.addresses else None
        if first is not None and not first.is_loopback:
            continue
        contact = facts.contacts.get(name)
        told = contact.address if isinstance(contact, Reached) else ""
        address = told or facts.cluster.node(name).address or "ADDRESS"
        yield Finding(
            code="host-own-name",
            severity=Severity.WARN,
            nodes=(name,),
            seen=f"its own name {own.name} is {first} there"
            if first
            else f"its own name {own.name} means nothing there",
            why="Gloo tells peers the address of the node's own name, and each of them then dials itself.",
            fix=f"sudo sed -i '/^127\\..*\\b{own.name}\\b/d' /etc/hosts    # on {name}\n"
            f"echo '{address} {own.name}' | sudo tee -a /etc/hosts    # on {name}",
        )


PART = Subject(
    name="own-name",
    title="own names lead to addresses that peers can dial",
    probes=(OWN_NAME,),
    rules=(own_name_on_loopback,),
    stories=(
        Diagnosis(
            code="host-own-name",
            title="a node's own name is a loopback address",
            severity=Severity.WARN,
            symptoms=(
                "Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
                "connect [127.0.1.1]:41896: Connection refused",
                "Unable to resolve hostname to a (local) address. Using the loopback address as fallback.",
            ),
            explanation="Debian's and Ubuntu's installers write `127.0.1.1 HOSTNAME` into /etc/hosts. Gloo, and every"
            " program that asks for the address of its own host name, then tells its peers 127.0.1.1, and each of them"
            " dials itself.",
            remedy="Give the name its real address in /etc/hosts on the node: delete the 127.0.1.1 line and add"
            " `ADDRESS HOSTNAME`. Without root, set GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) to the interface that"
            " peers reach, under `env:` in aboard.yaml.",
        ),
    ),
)
