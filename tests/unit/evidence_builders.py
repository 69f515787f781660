"""Evidence made by hand, for the rules: ranks on nodes, each with what was seen of it."""

from collections.abc import Mapping
from typing import Any

from aboard.core.cluster.node import Node
from aboard.core.evidence.node_snapshot import (
    CollectiveRecord,
    NodeSnapshot,
    ProcessGroupRecord,
    ProcessSnapshot,
    RankSnapshot,
    TcpConnection,
)
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.plan.plan import MasterAddress, NodePlan, Plan, Start
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import NodeConnection, RankProcess, Run
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.apply_rules import judge_by_rules
from aboard.doctor.death.rules import DEATH_RULES

NOW = 1000.0
WAITING = Untrusted(
    'Thread 0x01 (most recent call first):\n  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 9 in all_reduce\n  File "/home/me/train.py", line 7 in step\n'  # noqa: E501 - as Python prints it
)


def stack(*frames: tuple[str, int, str]) -> Untrusted:
    """As faulthandler prints it, the innermost first."""
    lines = "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in frames)
    return Untrusted(f"Current thread 0x0000 (most recent call first):\n{lines}")


def process(**given: Any) -> ProcessSnapshot:
    """`name` and `file` may be given as plain text."""
    given = {"pid": 4711, "name": "python", "state": "S", "states": "SSSSSSSS", "file": "", **given}
    return ProcessSnapshot(**{**given, "name": Untrusted(given["name"]), "file": Untrusted(given["file"])})


def at_collective(
    seq: int,
    *,
    over: bool = False,
    op: str = "gloo:all_reduce",
    sizes: str = "",
    types: tuple[str, ...] = (),
    at: float = 990.0,
) -> ProcessGroupRecord:
    """A rank's record of the one group, of which the last entry is this."""
    done = [
        CollectiveRecord(seq=each, op="gloo:all_reduce", at=at - (seq - each), over=True)
        for each in range(max(1, seq - 9), seq)
    ]
    last = CollectiveRecord(seq=seq, op=op, at=at, over=over, sizes=sizes, types=types)
    return ProcessGroupRecord(
        name="0", what="default_pg", enqueued=seq, completed=seq if over else seq - 1, entries=(*done, last)
    )


def in_collective(seq: int = 20, **given: Any) -> RankSnapshot:
    given = {"process": process(), "stack": WAITING, "groups": (at_collective(seq),), **given}
    return RankSnapshot(**given)


def ending(given: Evidence) -> tuple[Finding, ...]:
    """What the rules say of a run's end."""
    return judge_by_rules(given, DEATH_RULES).findings


def evidence(
    ranks: Mapping[int, RankSnapshot],
    *,
    per_node: int = 2,
    phases: Mapping[int, Phase] | None = None,
    default: Phase = Phase.STEPS,
    nodes: Mapping[str, Mapping[str, Any]] | None = None,
    **given: Any,
) -> Evidence:
    """Ranks are spread over n1, n2, … in their order; `nodes` adds what was seen around them."""
    world = len(ranks)
    names = [f"n{1 + first // per_node}" for first in range(0, world, per_node)]
    parts = []
    run = Run(id="brave-otter")
    run.generation.number = 1
    for number, name in enumerate(names):
        run.generation.connections[name] = NodeConnection(state="held", at=NOW - 60)
        own = range(number * per_node, min(world, (number + 1) * per_node))
        starts = tuple(Start(child=str(rank), argv=("python", "train.py"), rank=rank) for rank in own)
        parts.append(NodePlan(node=Node(name=name, address=f"10.0.0.{number + 1}"), starts=starts))
        for rank in own:
            phase = (phases or {}).get(rank, default)
            run.generation.children[name, str(rank)] = RankProcess(
                node=name, name=str(rank), state="started", phase=phase, since=NOW - 30
            )
            run.generation.phases[phase] += 1
    plan = Plan(
        run="brave-otter",
        program=Program(kind=ProgramKind.SCRIPT, target="train.py"),
        master=MasterAddress(node="n1", address="10.0.0.1", port=29500),
        parts=tuple(parts),
    )
    snapshots = {
        name: NodeSnapshot(
            at=NOW,
            ranks={rank: ranks[rank] for rank in range(number * per_node, min(world, (number + 1) * per_node))},
            **{"addresses": (("eth0", f"10.0.0.{number + 1}"),), **seen_around((nodes or {}).get(name, {}))},
        )
        for number, name in enumerate(names)
    }
    given["last_lines"] = {rank: tuple(map(Untrusted, lines)) for rank, lines in given.get("last_lines", {}).items()}
    return Evidence(
        **{"plan": plan, "run": run, "now": NOW, "snapshots": snapshots, "quiet": 12.0, "usual": 0.2, **given}
    )


def seen_around(given: Mapping[str, Any]) -> dict[str, Any]:
    """What tests give as plain text, as a node's answer has it."""
    found = dict(given)
    if isinstance(given.get("kernel"), tuple):
        found["kernel"] = tuple(map(Untrusted, given["kernel"]))
    if "mounts" in given:
        found["mounts"] = tuple((Untrusted(place), kind, Untrusted(of)) for place, kind, of in given["mounts"])
    if "hung" in given:
        found["hung"] = Untrusted(given["hung"])
    if "quota" in given:
        found["quota"] = Untrusted(given["quota"])
    names = given.get("names", {})
    found["names"] = {name: Untrusted(told) if isinstance(told, str) else told for name, told in names.items()}
    return found


def stuck_socket(local: str, remote: str, *, tx: int = 500_000) -> TcpConnection:
    return TcpConnection(local=local, remote=remote, state="ESTABLISHED", tx=tx, resent=4, silent=5.0, rtt=0.001)
