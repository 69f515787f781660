"""Rates: throughput and loss of each link, measured in rounds of disjoint pairs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from statistics import median

from aboard.core.decoding import try_decode
from aboard.core.probes.facts import Facts
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Replies, Script
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Diagnosis, Finding, Fix, join_fixes
from aboard.doctor.network import diagnoses as network
from aboard.doctor.network.connection_text import find_node_address
from aboard.doctor.network.mesh_probe import ListenReply, get_mesh
from aboard.doctor.network.mesh_result import Pair
from aboard.lazy_dataclass import dataclass

PUSH_SECONDS = 0.2
PUSH_WITHIN = 6.0
# All pairs of many nodes would take minutes; this many partners are enough for a slow node to stand out.
MOST_ROUNDS = 15
SLOW_FACTOR = 4.0
# No link of a cluster is this slow by design.
SLOW_MBIT = 100.0
LOSS = 0.01
FEWEST_LOST = 5
# A briefly busy node is no slow link: doubtful links are measured again, alone, this many times.
RETRIES = 3
RETRIED_PAIRS = 6


@dataclass(frozen=True, kw_only=True)
class LinkRate:
    """The measurement of one direction."""

    mbit: float
    segments: int
    again: int
    rtt: float

    @property
    def loss(self) -> float:
        return self.again / self.segments if self.segments else 0.0


@dataclass(frozen=True, kw_only=True)
class _Pushed:
    """The reply to `push`."""

    bytes: int
    seconds: float
    segments: int
    retransmits: int
    rtt: float


@dataclass(frozen=True, kw_only=True)
class LinkRates:
    """The links by (from, to); of repeated measurements the best counts."""

    links: Mapping[Pair, LinkRate] = field(default_factory=dict)

    @property
    def usual(self) -> float:
        return median(link.mbit for link in self.links.values()) if self.links else 0.0

    @property
    def slow(self) -> set[Pair]:
        least = max(SLOW_MBIT, self.usual / SLOW_FACTOR)
        return {pair for pair, link in self.links.items() if link.mbit < least}

    @property
    def lossy(self) -> set[Pair]:
        return {pair for pair, link in self.links.items() if link.loss >= LOSS and link.again >= FEWEST_LOST}


def schedule_rounds(names: Sequence[str]) -> list[list[Pair]]:
    """A round-robin by the circle method: in each round every node has one partner, never the same twice."""
    ring: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    half = len(ring) // 2
    games: list[list[Pair]] = []
    for _ in range(len(ring) - 1):
        partners = zip(ring[:half], reversed(ring[half:]), strict=True)
        games.append([(one, other) for one, other in partners if one is not None and other is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    step = max(1.0, len(games) / MOST_ROUNDS)
    return [games[int(at * step)] for at in range(min(len(games), MOST_ROUNDS))] if len(names) > 1 else []


def _run_rates_probe(facts: Facts) -> Script[LinkRates]:
    outcome = get_mesh(facts)
    if not outcome.targets:
        return LinkRates()
    good = {(frm, to) for (frm, to, _), each in outcome.tries.items() if each.outcome == "ok"}
    places = {name: find_node_address(outcome, name) for name in outcome.targets}
    replies = yield {name: ProbeRequest(op="listen", fields={"ports": [0]}) for name in places}
    listening = {name: try_decode(ListenReply, reply) for name, reply in replies.items()}
    ports = {name: each.ports[0].port for name, each in listening.items() if each and each.ports and each.ports[0].port}
    links: dict[Pair, LinkRate] = {}
    for pairs in schedule_rounds(list(ports)):
        # Both ways at once, as an all-reduce uses a link.
        both = [pair for one, other in pairs for pair in ((one, other), (other, one)) if pair in good]
        links.update(_parse_links(both, (yield _build_asks(both, places, ports))))
    for _ in range(RETRIES):
        now = LinkRates(links=links)
        doubtful = sorted(now.slow | now.lossy)
        for pair in doubtful[:: max(1, len(doubtful) // RETRIED_PAIRS)]:
            again = _parse_links([pair], (yield _build_asks([pair], places, ports)))
            links.update({pair: link for pair, link in again.items() if link.mbit > links[pair].mbit})
    return LinkRates(links=links)


RATES = MultiNodeProbe(name="rates", script=_run_rates_probe, quick=False)


def find_bad_links(facts: Facts) -> Iterator[Finding]:
    """Links that are slow or lose packets, grouped by the nodes that they have in common."""
    outcome = RATES.outcome(facts)
    if not isinstance(outcome, LinkRates):
        return
    for nodes, pairs in group_bad_pairs(outcome.slow | outcome.lossy):
        lost = max(outcome.links[pair].loss for pair in pairs)
        worst = min(outcome.links[pair].mbit for pair in pairs)
        rate = f"{worst:,.0f} Mbit/s; the median is {outcome.usual:,.0f}"
        again = f"{lost:.1%} of the packets were retransmitted"
        diagnosis = network.LOSS if lost >= LOSS else network.SLOW
        yield diagnosis.finding(
            nodes=nodes,
            seen=f"{_name_links(nodes, pairs)}: {f'{again}, {rate}' if lost >= LOSS else rate}",
            why="A lost packet stalls its link for a moment, and every collective with it."
            if lost >= LOSS
            else "Every collective waits for its slowest link, so the whole run is limited to this rate.",
            fix=_build_fix(diagnosis, facts, nodes),
        )


def group_bad_pairs(bad: set[Pair]) -> Iterator[tuple[tuple[str, ...], frozenset[Pair]]]:
    """The nodes with most bad links, until each link is explained; an isolated bad link blames both ends."""
    remaining = set(bad)
    while remaining:
        partners = {
            name: {other for pair in remaining if name in pair for other in pair} - {name}
            for name in _list_nodes(remaining)
        }
        worst = max(sorted(partners), key=lambda name: len(partners[name]))
        pairs = frozenset(pair for pair in remaining if worst in pair)
        yield ((worst,) if len(partners[worst]) > 1 else tuple(sorted(_list_nodes(pairs)))), pairs
        remaining -= pairs


def _build_asks(pairs: Sequence[Pair], places: Mapping[str, str], ports: Mapping[str, int]) -> dict[str, ProbeRequest]:
    return {
        frm: ProbeRequest(
            op="push",
            fields={"target": [places[to], ports[to]], "seconds": PUSH_SECONDS, "timeout": PUSH_WITHIN},
            within=PUSH_WITHIN + 5,
        )
        for frm, to in pairs
    }


def _parse_links(pairs: Sequence[Pair], replies: Replies) -> dict[Pair, LinkRate]:
    to = dict(pairs)
    # An unreadable reply counts as not measured; the mesh has shown that the link works.
    decoded = {(frm, to[frm]): try_decode(_Pushed, reply) for frm, reply in replies.items()}
    return {pair: _compute_link_rate(pushed) for pair, pushed in decoded.items() if pushed is not None}


def _compute_link_rate(pushed: _Pushed) -> LinkRate:
    mbit = pushed.bytes * 8 / 1e6 / max(pushed.seconds, 1e-6)
    return LinkRate(mbit=mbit, segments=pushed.segments, again=pushed.retransmits, rtt=pushed.rtt)


def _list_nodes(pairs: Iterable[Pair]) -> set[str]:
    return {name for pair in pairs for name in pair}


def _name_links(nodes: tuple[str, ...], pairs: frozenset[Pair]) -> str:
    if len(nodes) == 1:
        return f"{format_count(len(pairs), 'link')} of {nodes[0]}"
    return f"{min(pairs)[0]} {'→' if len(pairs) == 1 else '↔'} {min(pairs)[1]}"


def _build_fix(diagnosis: Diagnosis, facts: Facts, nodes: tuple[str, ...]) -> Fix:
    interfaces = get_mesh(facts).interfaces
    return join_fixes(*(diagnosis.fix(interface=interfaces.get(node, "eth0"), node=node) for node in nodes[:3]))
