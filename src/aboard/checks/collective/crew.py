"""The crew: which nodes take part in the exercise, with how many ranks, and who is left out for which reason."""

from collections.abc import Mapping
from dataclasses import field

from aboard.checks.collective.script import ABOUT
from aboard.checks.network.exercise import MESH
from aboard.checks.network.mesh import Mesh
from aboard.checks.network.rates import cover
from aboard.checks.scripted import as_a_rank, decode_told, said
from aboard.core.decoding import Word
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.probe import Answer, Command, Probe, Unparsed
from aboard.core.words import many
from aboard.lazy import dataclass

# Importing torch takes two seconds of a core, so a machine that is many nodes (a sandbox) would take minutes.
MOST_PER_CORE = 8


@dataclass(frozen=True, kw_only=True)
class About:
    """A node as the exercise needs to know it; `machine` is equal on nodes that are the same one."""

    torch: bool = False
    cuda: bool = False
    gpus: int
    cores: int
    machine: Word
    port: int
    token: Word


def parse_about(answer: Answer) -> About:
    told = decode_told(About, said(answer))
    if not told.port:
        raise Unparsed("no port could be had")
    return told


TORCH = Probe(
    name="torch", question=lambda node: Command(argv=as_a_rank(node, "-c", ABOUT)), parse=parse_about, quick=False
)


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Ranks by node, in order. `why` is said when nobody takes part, `left_out` of nodes that don't."""

    ranks: Mapping[str, int] = field(default_factory=dict)
    nccl: bool = False
    why: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)


def muster(facts: Facts, *, every: bool) -> Crew:
    """Who takes part: all, unless something is known to be wrong with them, or they are too many for their machine."""
    about = facts.of(TORCH)
    asked = [node for node in facts.reached() if node.name in about]
    lacking = [node.name for node in asked if not about[node.name].torch]
    left_out = {node.name: "it was not reached" for node in facts.cluster if node not in facts.reached()}
    left_out.update({name: unknown.why for name, unknown in facts.unknown(TORCH).items()})
    if lacking:
        return Crew(why="there is no torch", left_out=dict.fromkeys(lacking, "torch is not installed"))
    left_out.update(_cut_off(facts))
    crew = [node for node in asked if node.name not in left_out]
    if not every:
        left_out.update(_too_many(crew, about))
        crew = [node for node in crew if node.name not in left_out]
    if not crew:
        return Crew(why="no node can take part", left_out=left_out)
    nccl = all(about[node.name].gpus and about[node.name].cuda for node in crew)
    ranks = {node.name: _ranks(node, about[node.name]) if nccl else 1 for node in crew}
    return Crew(ranks=ranks, nccl=nccl, left_out=left_out)


def _cut_off(facts: Facts) -> dict[str, str]:
    """Whom the network's own exercise has just found cut off: waiting for them again would tell nothing new."""
    mesh = facts.outcome(MESH)
    if not isinstance(mesh, Mesh):
        return {}
    bad = {(frm, to) for (frm, to, _), each in mesh.tries.items() if each.outcome != "ok"}
    names = dict.fromkeys(name for nodes, _pairs in cover(bad) for name in nodes)
    return {
        **dict.fromkeys(names, "its connections fail"),
        **dict.fromkeys(mesh.missing, "its connections are unknown"),
    }


def _too_many(crew: list[Node], about: Mapping[str, About]) -> dict[str, str]:
    """Of nodes that are one machine some stand for all, the first among them: rank 0 is there."""
    machines: dict[str, list[str]] = {}
    for node in crew:
        machines.setdefault(about[node.name].machine or node.name, []).append(node.name)
    left: dict[str, str] = {}
    for names in machines.values():
        cores = max(1, min(about[name].cores for name in names))
        most = MOST_PER_CORE * cores
        if len(names) > most:
            chosen = {names[at * len(names) // most] for at in range(most)}
            why = f"{len(names)} nodes are one machine of {many(cores, 'core')}"
            left.update({name: why for name in names if name not in chosen})
    return left


def _ranks(node: Node, about: About) -> int:
    """One for each GPU that a run would use."""
    slots = len(node.picked) if node.picked is not None else node.slots
    return max(1, min(about.gpus, slots or about.gpus))
