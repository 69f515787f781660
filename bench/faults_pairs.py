"""Two faults at once: the first cause must be reported first."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass, replace
from typing import Any

from aboard.sandbox.faults.host.processes import PowerLoss
from aboard.sandbox.faults.host.resource_limits import SmallShm
from aboard.sandbox.faults.network.firewall import FirewallDrop
from aboard.sandbox.faults.network.links import LinkDown, MtuBlackHole
from faults_cases import CASES, Case
from faults_stage import RANKS, START_SECONDS, Stage, get_node, wait_until
from faults_troubles import Broken, Signalled, Trouble
from faults_try import PATIENCE_SECONDS, Session, find_effect_time, is_right

KILL, STOP = Signalled(number=signal.SIGKILL), Signalled(number=signal.SIGSTOP)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The first fault is a case on a chosen rank; the second follows `after` seconds after its effect."""

    first: str
    rank: int
    second: Trouble
    what: str
    other: int
    after: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.first} on {get_node(self.rank)}, then {self.what} on {get_node(self.other)}"

    @property
    def case(self) -> Case:
        return replace(next(case for case in CASES if case.name == self.first), victim=self.rank, lasts=False)


DROP, DOWN = Broken(fault=FirewallDrop(network="fabric")), Broken(fault=LinkDown(network="fabric"))
BLIND = Broken(fault=FirewallDrop(network="management"))
PAIRS = (
    Pair(first="deadlock, run", rank=3, second=DROP, what="network dropped", other=6),
    Pair(first="data doesn't come, run", rank=5, second=DOWN, what="cable pulled", other=2),
    Pair(
        first="sleeps, run", rank=2, second=Broken(fault=MtuBlackHole(network="fabric")), what="large packets", other=7
    ),
    Pair(first="sleeps, run", rank=6, second=BLIND, what="management network dropped", other=3),
    Pair(first="network dropped, run", rank=4, second=STOP, what="rank stopped", other=3, after=2.0),
    Pair(first="cable pulled, run", rank=2, second=BLIND, what="management network dropped", other=7),
    Pair(first="large packets vanish, run", rank=7, second=DOWN, what="cable pulled", other=2, after=3.0),
    Pair(first="rank killed, run", rank=2, second=KILL, what="rank killed", other=7, after=0.2),
    Pair(first="raises, run", rank=3, second=Broken(fault=PowerLoss()), what="power lost", other=6, after=0.0),
    Pair(first="rank stopped, run", rank=4, second=DROP, what="network dropped", other=2),
    Pair(
        first="rank killed, run",
        rank=5,
        second=Broken(fault=SmallShm()),
        what="small shared memory",
        other=2,
        after=0.0,
    ),
    Pair(first="service doesn't answer, run", rank=1, second=DROP, what="network dropped", other=6),
)


def try_pair(stage: Stage, pair: Pair, session: Session) -> dict[str, Any]:
    """Runs the pair in its own launch, which few pairs let survive."""
    session.close()
    case = pair.case
    beneath = case.beneath.on(stage, case.node, pair.rank) if case.beneath else contextlib.nullcontext()
    with beneath, stage.launch() as running, contextlib.ExitStack() as broken:
        assert wait_until(lambda: len(stage.marks("warm")) == RANKS, START_SECONDS), running.output[-1500:]
        since = time.time()
        if case.own:
            stage.order(case.own, pair.rank)
            assert wait_until(lambda: stage.marks("effect"), 30), "the rank did not reach its fault"
        else:
            assert case.trouble is not None
            broken.enter_context(case.trouble.on(stage, case.node, pair.rank))
        at = find_effect_time(stage, case, since) or since
        wait_until(lambda: time.time() >= at + pair.after, pair.after + 1)
        with contextlib.suppress(AssertionError):
            # A rank killed by the first fault cannot be killed again.
            broken.enter_context(pair.second.on(stage, get_node(pair.other), pair.other))
        wait_until(lambda: running.over or running.verdicts(since), PATIENCE_SECONDS)
        told = running.verdicts(since)
    stage.restore(case.node, get_node(pair.other))
    said = [f"{when - at:.1f} s: {finding['code']} {finding['nodes']} {finding['ranks']}" for when, finding in told]
    right = bool(told) and is_right(case, told[0][1])
    seconds = round(told[0][0] - at, 2) if told else None
    return {"right": right, "seconds": seconds, "said": said, "load": round(os.getloadavg()[0], 1)}
