"""The exercise `mesh`: each node connects to its peers, on the rendezvous port and on one that the system chose."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from ipaddress import ip_address, ip_interface
from typing import Annotated, Any

from aboard.checks.network.mesh import RENDEZVOUS_PORT, Address, IpAddress, Mesh, Port, Resolved, Taken, Try
from aboard.core.decoding import Limit, Word, decode, try_decode
from aboard.core.exercise import Ask, Exercise, Replies, Script
from aboard.core.facts import Facts, Unknown
from aboard.core.node import Node
from aboard.core.reach import Reached
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy import dataclass

# Beyond, a node connects to O(log n) of its peers only.
ALL_PAIRS_UP_TO = 64
# Many packets of any size that a network has, so that a path that is too narrow for them shows.
LARGE = 64 * 1024
CONNECT_SECONDS = 2.0
AGAIN_SECONDS = 3.0
# On one machine with many sandbox hosts, or behind a slow switch, many connections take longer than few.
SECONDS_PER_NODE = 1 / 32
IFNAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
# A node connects to all of thousands of peers, if it is asked to.
_MOST = 100_000


def peers(names: Sequence[str], *, all_pairs: bool = False) -> dict[str, tuple[str, ...]]:
    """Whom each node connects to: all, or above 64 nodes those 1, 2, 4, … places away on both sides."""
    count = len(names)
    if all_pairs or count <= ALL_PAIRS_UP_TO:
        return {name: tuple(peer for peer in names if peer != name) for name in names}
    steps = [1 << power for power in range(count.bit_length()) if 1 << power <= count // 2]
    return {
        name: tuple(dict.fromkeys(names[(at + sign * step) % count] for step in steps for sign in (1, -1)))
        for at, name in enumerate(names)
    }


def mesh(*, all_pairs: bool = False) -> Exercise[Mesh]:
    """The exercise; `all_pairs` tries each pair however many nodes there are."""
    return Exercise(name="mesh", script=lambda facts: _script(facts, all_pairs=all_pairs), early=True)


MESH = mesh()


def _script(facts: Facts, *, all_pairs: bool) -> Script[Mesh]:
    nodes = {node.name: node for node in facts.reached()}
    port = rendezvous_port(facts)
    began = Ask(op="listen", fields={"ports": [port, 0]})
    heard = _Heard(facts, (yield dict.fromkeys(nodes, began)))
    whom = peers(list(heard.ports), all_pairs=all_pairs)
    plans = {name: list(heard.plan(name, whom[name])) for name in heard.ports}
    first = yield heard.asks(plans, CONNECT_SECONDS)
    tries = heard.tries(plans, first)
    heard.learn(first)
    failed = {
        name: [heard.by_address(dial) for dial in plan if dial.key in tries and tries[dial.key].outcome != "ok"]
        for name, plan in plans.items()
    }
    flaky: dict[tuple[str, str, Port], Try] = {}
    if any(failed.values()):
        again = heard.tries(failed, (yield heard.asks({k: v for k, v in failed.items() if v}, AGAIN_SECONDS)))
        for key, second in again.items():
            if second.outcome == "crawled" or (second.outcome == "ok" and tries[key].outcome != "unresolved"):
                flaky[key] = tries[key]
            tries[key] = _worse(tries[key], second)
    return Mesh(
        port=port,
        targets=heard.targets,
        tries=tries,
        taken=heard.taken,
        flaky=flaky,
        resolved=heard.resolved,
        hostnames=heard.hostnames,
        addresses=heard.addresses,
        missing=heard.missing,
        sparse=not all_pairs and len(heard.ports) > ALL_PAIRS_UP_TO,
    )


def rendezvous_port(facts: Facts) -> int:
    """The port at which rank 0 will listen, as the first node's env has it."""
    given = facts.cluster.nodes[0].env.get("MASTER_PORT", "") if facts.cluster.nodes else ""
    return int(given) if given.isdecimal() and 0 < int(given) < 1 << 16 else RENDEZVOUS_PORT


@dataclass(frozen=True, kw_only=True)
class _Dial:
    """One connection to be tried: whose, to what, and how much goes both ways."""

    key: tuple[str, str, Port]
    host: str
    port: int
    size: int


@dataclass(frozen=True, kw_only=True)
class _Owner:
    """Who has a port, as far as the node's user may know."""

    user: Untrusted
    name: Untrusted = NO_TEXT
    pid: int = 0
    ours: bool = False


@dataclass(frozen=True, kw_only=True)
class _Bound:
    """A port on which a node listens, or why it can't."""

    port: int = 0
    errno: Word = ""
    owner: _Owner | None = None


@dataclass(frozen=True, kw_only=True)
class Listening:
    """The answer to `listen`."""

    ports: tuple[_Bound, ...]
    # Interface, address, and the length of its network's prefix.
    addresses: Annotated[tuple[tuple[Word, IpAddress, int], ...], Limit(_MOST)] = ()


@dataclass(frozen=True, kw_only=True)
class _Connected:
    """The answer to `connect`."""

    results: Annotated[tuple[Try, ...], Limit(_MOST)] = ()
    resolved: Annotated[Mapping[str, Resolved], Limit(_MOST)] = field(default_factory=dict)
    hostname: Untrusted = NO_TEXT


class _Heard:
    """What the nodes have said so far; one that talks nonsense is missing, and costs the others nothing."""

    def __init__(self, facts: Facts, replies: Replies) -> None:
        self.missing: dict[str, str] = {}
        self.ports: dict[str, dict[Port, int]] = {}
        self.taken: dict[str, Taken] = {}
        self.addresses: dict[str, tuple[Address, ...]] = {}
        self.resolved: dict[str, dict[str, Resolved]] = {}
        self.hostnames: dict[str, Untrusted] = {}
        self._contacts = {name: c.address for name, c in facts.contacts.items() if isinstance(c, Reached) and c.address}
        for name, reply in replies.items():
            if isinstance(reply, Unknown):
                self.missing[name] = reply.why
                continue
            try:
                self._listening(name, reply)
            except ValueError:
                self.missing[name] = "its answer can't be read"
        self.targets = {node.name: self._target(node) for node in facts.reached() if node.name in self.ports}

    def plan(self, name: str, whom: Sequence[str]) -> Iterator[_Dial]:
        for peer in whom:
            for kind, port in self.ports[peer].items():
                size = LARGE if kind is Port.EPHEMERAL else 0
                yield _Dial(key=(name, peer, kind), host=self.targets[peer], port=port, size=size)

    def asks(self, plans: Mapping[str, Sequence[_Dial]], seconds: float) -> dict[str, Ask]:
        each = seconds + len(self.ports) * SECONDS_PER_NODE
        # Twice, since a name that nobody answers for takes its time before there is anything to connect to.
        timeout = 2 * each + 1
        return {
            name: Ask(
                op="connect",
                fields={
                    "targets": [[dial.host, dial.port, dial.size] for dial in plan],
                    "seconds": each,
                    "timeout": timeout,
                },
                within=timeout + 5,
            )
            for name, plan in plans.items()
        }

    def tries(self, plans: Mapping[str, Sequence[_Dial]], replies: Replies) -> dict[tuple[str, str, Port], Try]:
        found: dict[tuple[str, str, Port], Try] = {}
        for name, reply in replies.items():
            if isinstance(reply, Unknown):
                self.missing[name] = reply.why
                continue
            try:
                results = decode(_Connected, reply, strict=True).results
                found.update({dial.key: each for dial, each in zip(plans[name], results, strict=True)})
            except ValueError:
                self.missing[name] = "its answer can't be read"
        return found

    def learn(self, replies: Replies) -> None:
        """Takes what each node makes of the names."""
        for name, reply in replies.items():
            told = try_decode(_Connected, reply)
            if told is not None:
                self.resolved[name] = {asked: _sort(found) for asked, found in told.resolved.items()}
                self.hostnames[name] = told.hostname

    def by_address(self, dial: _Dial) -> _Dial:
        """The same to the address at which we reached the peer, when its name leads nowhere."""
        frm, to, _ = dial.key
        address = self._contacts.get(to)
        if address is None or not isinstance(self.resolved.get(frm, {}).get(dial.host), Untrusted):
            return dial
        return _Dial(key=dial.key, host=address, port=dial.port, size=dial.size)

    def _listening(self, name: str, reply: Mapping[str, Any]) -> None:
        told = decode(Listening, reply)
        self.addresses[name] = tuple(
            Address(interface=interface, address=str(ip_interface(f"{address}/{prefix}")))
            for interface, address, prefix in told.addresses
        )
        own: dict[Port, int] = {}
        for kind, bound in zip(Port, told.ports, strict=True):
            if bound.port:
                own[kind] = bound.port
            else:
                self.taken[name] = _taken(bound)
        self.ports[name] = own

    def _target(self, node: Node) -> str:
        """What its peers shall connect to: the network that was asked for, or what everybody calls it."""
        if node.fabric_address:
            return node.fabric_address
        wanted = [at for at in self.addresses[node.name] if at.usable and at.interface in asked_for(node)]
        if wanted:
            return wanted[0].host
        if not node.local:
            return node.target
        # The head is called localhost, or has a name that means nothing to others.
        own = [at for at in self.addresses[node.name] if at.usable]
        near = [at for at in own if any(_inside(peer, at.address) for peer in self._contacts.values())]
        return (near or own)[0].host if own else node.target


def asked_for(node: Node) -> tuple[str, ...]:
    """The interfaces that the user's env names for a node, without those that it only excludes."""
    given = [node.env.get(name, "") for name in IFNAMES]
    return tuple(word.lstrip("=") for text in given if not text.startswith("^") for word in text.split(",") if word)


def _taken(bound: _Bound) -> Taken:
    owner = bound.owner
    if owner is None:
        return Taken(why=bound.errno)
    who = f"{owner.name.raw()} (pid {owner.pid})" if owner.pid else "a process"
    return Taken(why=bound.errno, owner=Untrusted(f"{who} of {owner.user.raw()}"), pid=owner.pid, ours=owner.ours)


def _sort(found: Resolved) -> Resolved:
    return found if isinstance(found, Untrusted) else tuple(sorted({str(ip_address(each)) for each in found}))


def _worse(first: Try, second: Try) -> Try:
    """The second try counts, but nobody at home becomes `no route` when it is asked twice: that was a drop."""
    return first if (first.outcome, second.outcome) == ("dropped", "rejected") else second


def _inside(address: str, network: str) -> bool:
    try:
        return ip_address(address) in ip_interface(network).network
    except ValueError:
        return False
