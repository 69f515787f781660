"""Runs jobs: groups of nodes in parallel, each with its ranks' task, and collects the ranks' reports."""

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import ProbeRequest, Replies, Round
from aboard.core.probes.probe import ProbeParseError
from aboard.core.text.byte_sizes import KIB, MIB
from aboard.doctor.collective.fault_bisection import NodeGroup
from aboard.doctor.collective.job_result import CollectiveJob
from aboard.doctor.collective.participants import TORCH, Participants
from aboard.doctor.collective.rank_report import RankReport, parse_rank_reports
from aboard.doctor.network.connection_text import find_node_address
from aboard.doctor.network.link_rates import schedule_rounds
from aboard.doctor.network.mesh_probe import IFNAMES
from aboard.doctor.network.mesh_result import MeshResult
from aboard.doctor.shared.script_probes import build_rank_command, parse_run_reply
from aboard.lazy_dataclass import dataclass
from aboard.node_scripts.script_source import RUN_NEXT_WORD, bundle_scripts, read_script

# A `setup` line and a cold disk may take their time at first; torch takes seconds to import.
MEET_PER_NODE = 0.2
LOAD_SECONDS, LOAD_PER_NODE, PATIENT_SECONDS = 20.0, 1.5, 120.0
# All have imported torch by then: connecting takes milliseconds, and a lost packet is retransmitted after one second.
CONNECT_SECONDS, STALL_SECONDS, PER_NODE = 2.5, 6.0, 0.05
# Up to here every pair is measured; above, each node with those that differ from it in one bit of their number.
ALL_PAIRS = 8
MOST_ROUNDS = 20
# A slow link must not spend minutes on the larger sizes.
MOST_SECONDS = 1.5


@dataclass(frozen=True, kw_only=True)
class CollectiveWorkload:
    """What a job does: pairs of nodes, and collectives of sizes up to `largest`, for about `seconds` each.

    `meet` is how long ranks may differ in their start, `load` how long one may import torch.
    """

    pairs: bool
    largest: int
    seconds: float
    meet: float = 4.0
    load: float = LOAD_SECONDS


FULL_WORKLOAD = CollectiveWorkload(pairs=True, largest=16 * MIB, seconds=0.4, meet=7.0)
# After a rank that was late with torch: from a cold or remote disk, the import takes a minute and more.
PATIENT_WORKLOAD = replace(FULL_WORKLOAD, load=PATIENT_SECONDS)
PAIRS_WORKLOAD = CollectiveWorkload(pairs=True, largest=0, seconds=0.1)
SHORT_WORKLOAD = CollectiveWorkload(pairs=False, largest=4 * MIB, seconds=0.1)
# A GPU fabric reaches its rate at sizes that would take CPU sockets minutes.
NCCL_FACTOR = 16


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """What jobs need: the facts about the nodes, and the participants."""

    facts: Facts
    mesh: MeshResult | None
    participants: Participants

    def place(self, name: str) -> str:
        """The address at which peers reach a node."""
        return find_node_address(self.mesh, name) if self.mesh is not None else self.facts.cluster.node(name).target

    def owners(self) -> dict[str, str]:
        """The node of each address; an address that two nodes have (docker0) belongs to none."""
        found: dict[str, str] = {}
        for name, own in (self.mesh.addresses if self.mesh is not None else {}).items():
            for each in own:
                found[each.host] = "" if each.host in found else name
        return {**found, **{self.place(name): name for name in self.participants.ranks}}


def run_jobs(
    context: JobContext, groups: Sequence[NodeGroup], workload: CollectiveWorkload
) -> Generator[Round, Replies, list[CollectiveJob]]:
    """Runs all groups at once; a group whose leader finds its port in use is retried with another port."""
    replies = yield {name: ask for group in groups for name, ask in _build_asks(context, group, workload, 0).items()}
    jobs = [_collect_job(context, group, replies) for group in groups]
    again = [job.nodes for job in jobs if job.cause and "Address already in use" in job.cause[1].error]
    if again:
        replies = yield {name: ask for group in again for name, ask in _build_asks(context, group, workload, 1).items()}
        jobs = [_collect_job(context, job.nodes, replies) if job.nodes in again else job for job in jobs]
    return jobs


def _build_asks(
    context: JobContext, group: NodeGroup, workload: CollectiveWorkload, attempt: int
) -> dict[str, ProbeRequest]:
    about, leader, count = context.facts.of(TORCH), group[0], len(group)
    first = _find_first_ranks(context, group)
    factor = NCCL_FACTOR if context.participants.nccl else 1
    patience = 4.0 if context.participants.nccl else 1.0
    load = workload.load + LOAD_PER_NODE * count
    within = workload.meet + load + 60 + 2 * count
    task = {
        "world": sum(context.participants.ranks[name] for name in group),
        "local": 0,
        "backend": "nccl" if context.participants.nccl else "gloo",
        "address": context.place(leader),
        "port": about[leader].port + attempt,
        "meet": workload.meet + MEET_PER_NODE * count,
        "load": load,
        "silence": CONNECT_SECONDS,
        "connect": patience * (CONNECT_SECONDS + PER_NODE * count),
        "stall": STALL_SECONDS + PER_NODE * count,
        "what": ["pairs"] if workload.pairs else [],
        "games": _schedule_pairs([first[name] for name in group]) if workload.pairs else [],
        "pair": MIB * factor,
        "sizes": _list_message_sizes(workload.largest * factor),
        "seconds": workload.seconds * patience,
        "most": MOST_SECONDS * patience,
        "rounds": MOST_ROUNDS,
        "within": within,
    }
    token = about[leader].token
    return {name: _build_ask(context, name, {**task, "rank": first[name]}, within, token) for name in group}


def _build_ask(context: JobContext, name: str, task: Mapping[str, Any], within: float, token: str) -> ProbeRequest:
    node, ranks = context.facts.cluster.node(name), context.participants.ranks[name]
    text = json.dumps({**task, "locals": ranks, "defaults": _build_rank_defaults(context, node)})
    script = bundle_scripts("rank_program", "rank_measurement", "rank_watch", "rank_roster")
    words: tuple[str, ...] = (script, text)
    if ranks > 1:
        # They are children of one process, which collects what each printed last.
        words = (read_script("several_ranks"), text, RUN_NEXT_WORD, script)
    command = build_rank_command(node, "-c", *words, timeout=within + 5)
    fields = replace(command, env={**command.env, "ABOARD_CHECK_TOKEN": token}).describe()
    if node.workdir:
        fields["cwd"] = node.workdir
    return ProbeRequest(op="run", fields=fields, within=command.timeout + 5)


def _build_rank_defaults(context: JobContext, node: Node) -> dict[str, str]:
    """Variables that a rank gets unless the user, the login or a `setup` line set them."""
    interface = context.mesh.interfaces.get(node.name) if context.mesh is not None else None
    interfaces = dict(zip(IFNAMES, (f"={interface}", interface), strict=True)) if interface else {}
    picked = {}
    if node.picked is not None:
        picked = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, node.picked)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {**interfaces, **picked, "OMP_NUM_THREADS": "1"}


def _find_first_ranks(context: JobContext, group: NodeGroup) -> dict[str, int]:
    ends = accumulate(context.participants.ranks[name] for name in group)
    return {name: end - context.participants.ranks[name] for name, end in zip(group, ends, strict=True)}


def _schedule_pairs(ranks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Pairs of ranks, in rounds in which each rank has at most one partner."""
    count = len(ranks)
    if count <= ALL_PAIRS:
        places = [[(int(a), int(b)) for a, b in pairs] for pairs in schedule_rounds([str(at) for at in range(count)])]
    else:
        bits = [1 << bit for bit in range((count - 1).bit_length())]
        places = [[(at, at ^ bit) for at in range(count) if at < at ^ bit < count] for bit in bits]
    return [[(ranks[a], ranks[b]) for a, b in game] for game in places]


def _list_message_sizes(largest: int) -> list[int]:
    sizes = [KIB]
    while sizes[-1] < largest:
        sizes.append(4 * sizes[-1])
    return sizes


def _collect_job(context: JobContext, group: NodeGroup, replies: Replies) -> CollectiveJob:
    reports: dict[str, tuple[RankReport, ...]] = {}
    missing: dict[str, str] = {}
    lost: dict[str, str] = {}
    for name in group:
        reply = replies[name]
        if isinstance(reply, Unknown):
            lost[name] = reply.why
            continue
        try:
            reports[name] = parse_rank_reports(parse_run_reply(reply))
        except ProbeParseError as error:
            missing[name] = str(error)
    return CollectiveJob(
        nodes=group,
        first=_find_first_ranks(context, group),
        reports=reports,
        missing=missing,
        lost=lost,
        owners=context.owners(),
    )
