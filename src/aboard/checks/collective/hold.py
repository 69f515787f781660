"""Holds jobs: groups of nodes side by side, each with what its ranks are told, and what they said at their end."""

import json
from collections.abc import Generator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from aboard.checks.collective.crew import TORCH, Crew
from aboard.checks.collective.halving import Group
from aboard.checks.collective.job import Job
from aboard.checks.collective.report import Report, parse_reports
from aboard.checks.collective.script import words
from aboard.checks.network.exercise import IFNAMES
from aboard.checks.network.mesh import Mesh
from aboard.checks.network.rates import rounds
from aboard.checks.network.words import address
from aboard.checks.scripted import as_a_rank, output
from aboard.core.exercise import Ask, Replies, Round
from aboard.core.facts import Facts, Unknown
from aboard.core.node import Node
from aboard.core.probe import Unparsed
from aboard.core.size import KIB, MIB
from aboard.lazy import dataclass

# A `setup` line and a cold disk may take their time at first; torch takes seconds to import.
MEET_PER_NODE = 0.2
LOAD_SECONDS, LOAD_PER_NODE = 20.0, 1.5
# All have torch by then: connecting takes milliseconds, and a packet that was lost is sent again after one second.
CONNECT_SECONDS, STALL_SECONDS, PER_NODE = 2.5, 6.0, 0.05
# Up to here each node is paired with each other; above, with those that differ from it in one bit of their number.
ALL_PAIRS = 8
MOST_ROUNDS = 20
# A slow link must not take the larger sizes with it for minutes.
MOST_SECONDS = 1.5


@dataclass(frozen=True, kw_only=True)
class What:
    """What a job does: pairs of nodes, and collectives of sizes up to `largest`, for about so many seconds each.

    `meet` is how long ranks may differ in their start.
    """

    pairs: bool
    largest: int
    seconds: float
    meet: float = 4.0


FULL = What(pairs=True, largest=16 * MIB, seconds=0.4, meet=7.0)
PAIRS = What(pairs=True, largest=0, seconds=0.1)
SHORT = What(pairs=False, largest=4 * MIB, seconds=0.1)
# A GPU's fabric shows its rate at sizes that a CPU's sockets would take minutes for.
NCCL_FACTOR = 16


@dataclass(frozen=True, kw_only=True)
class Held:
    """What jobs are held with: the nodes as they are known, and who takes part."""

    facts: Facts
    mesh: Mesh | None
    crew: Crew

    def place(self, name: str) -> str:
        """Where peers reach a node."""
        return address(self.mesh, name) if self.mesh is not None else self.facts.cluster.node(name).target

    def owners(self) -> dict[str, str]:
        """Whose each address is; one that two nodes have (docker0) is nobody's."""
        found: dict[str, str] = {}
        for name, own in (self.mesh.addresses if self.mesh is not None else {}).items():
            for each in own:
                found[each.host] = "" if each.host in found else name
        return {**found, **{self.place(name): name for name in self.crew.ranks}}


def hold(held: Held, groups: Sequence[Group], what: What) -> Generator[Round, Replies, list[Job]]:
    """All groups at once; who leads one and finds its port taken is asked once more with another."""
    replies = yield {name: ask for group in groups for name, ask in _asks(held, group, what, 0).items()}
    jobs = [_job(held, group, replies) for group in groups]
    again = [job.nodes for job in jobs if job.cause and "Address already in use" in job.cause[1].error]
    if again:
        replies = yield {name: ask for group in again for name, ask in _asks(held, group, what, 1).items()}
        jobs = [_job(held, job.nodes, replies) if job.nodes in again else job for job in jobs]
    return jobs


def _asks(held: Held, group: Group, what: What, attempt: int) -> dict[str, Ask]:
    about, leader, count = held.facts.of(TORCH), group[0], len(group)
    first = _first(held, group)
    factor = NCCL_FACTOR if held.crew.nccl else 1
    patience = 4.0 if held.crew.nccl else 1.0
    load = LOAD_SECONDS + LOAD_PER_NODE * count
    within = what.meet + load + 60 + 2 * count
    task = {
        "world": sum(held.crew.ranks[name] for name in group),
        "local": 0,
        "backend": "nccl" if held.crew.nccl else "gloo",
        "address": held.place(leader),
        "port": about[leader].port + attempt,
        "token": about[leader].token,
        "meet": what.meet + MEET_PER_NODE * count,
        "load": load,
        "silence": CONNECT_SECONDS,
        "connect": patience * (CONNECT_SECONDS + PER_NODE * count),
        "stall": STALL_SECONDS + PER_NODE * count,
        "what": ["pairs"] if what.pairs else [],
        "games": _games([first[name] for name in group]) if what.pairs else [],
        "pair": MIB * factor,
        "sizes": _sizes(what.largest * factor),
        "seconds": what.seconds * patience,
        "most": MOST_SECONDS * patience,
        "rounds": MOST_ROUNDS,
        "within": within,
    }
    return {name: _ask(held, name, {**task, "rank": first[name]}, within) for name in group}


def _ask(held: Held, name: str, task: Mapping[str, Any], within: float) -> Ask:
    node, ranks = held.facts.cluster.node(name), held.crew.ranks[name]
    text = json.dumps({**task, "locals": ranks, "defaults": _defaults(held, node)})
    argv = as_a_rank(node, *words(text, ranks))
    fields = {"argv": list(argv), "env": dict(node.env), "timeout": within + 5}
    if node.workdir:
        fields["cwd"] = node.workdir
    return Ask(op="run", fields=fields, within=within + 10)


def _defaults(held: Held, node: Node) -> dict[str, str]:
    """Variables that a rank gets unless the user, the login or a `setup` line has given them a value."""
    card = held.mesh.interfaces.get(node.name) if held.mesh is not None else None
    cards = dict(zip(IFNAMES, (f"={card}", card), strict=True)) if card else {}
    picked = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, node.picked))} if node.picked is not None else {}
    return {**cards, **picked, "OMP_NUM_THREADS": "1"}


def _first(held: Held, group: Group) -> dict[str, int]:
    ends = accumulate(held.crew.ranks[name] for name in group)
    return {name: end - held.crew.ranks[name] for name, end in zip(group, ends, strict=True)}


def _games(ranks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Who is whose partner, in rounds in which each has at most one."""
    count = len(ranks)
    if count <= ALL_PAIRS:
        places = [[(int(a), int(b)) for a, b in pairs] for pairs in rounds([str(at) for at in range(count)])]
    else:
        bits = [1 << bit for bit in range((count - 1).bit_length())]
        places = [[(at, at ^ bit) for at in range(count) if at < at ^ bit < count] for bit in bits]
    return [[(ranks[a], ranks[b]) for a, b in game] for game in places]


def _sizes(largest: int) -> list[int]:
    sizes = [KIB]
    while sizes[-1] < largest:
        sizes.append(4 * sizes[-1])
    return sizes


def _job(held: Held, group: Group, replies: Replies) -> Job:
    reports: dict[str, tuple[Report, ...]] = {}
    missing: dict[str, str] = {}
    lost: dict[str, str] = {}
    for name in group:
        reply = replies[name]
        if isinstance(reply, Unknown):
            lost[name] = reply.why
            continue
        try:
            reports[name] = parse_reports(output(reply))
        except Unparsed as error:
            missing[name] = str(error)
    return Job(
        nodes=group, first=_first(held, group), reports=reports, missing=missing, lost=lost, owners=held.owners()
    )
