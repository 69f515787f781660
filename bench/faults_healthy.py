"""Healthy runs under disturbance: any finding above info is a false verdict."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.host.ssh_server import SshdStopped
from aboard.sandbox.faults.network.firewall import FirewallDrop
from aboard.sandbox.faults.network.links import LinkDown
from faults_stage import RANKS, START_SECONDS, Running, Stage, wait_until
from faults_troubles import HOG
from faults_try import Session

# How long to observe after a disturbance.
_AFTER_SECONDS = 4.0


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """`order` goes to ranks of a running training, `act` is done to a node; with `env` it gets its own launch."""

    name: str
    times: int
    seconds: float
    order: str = ""
    who: str = "all"
    act: Callable[[Stage, str], "contextlib.AbstractContextManager[Any]"] | None = None
    again: int = 1
    env: tuple[tuple[str, str], ...] = ()


def _drop_management(stage: Stage, node: str) -> "contextlib.AbstractContextManager[Any]":
    return inject_temporarily(stage.box, stage.box.host(node), FirewallDrop(network="management"))


def _stop_sshd(stage: Stage, node: str) -> "contextlib.AbstractContextManager[Any]":
    return inject_temporarily(stage.box, stage.box.host(node), SshdStopped())


def _pull_cable(stage: Stage, node: str) -> "contextlib.AbstractContextManager[Any]":
    return inject_temporarily(stage.box, stage.box.host(node), LinkDown(network="fabric"))


def _load_cpu(stage: Stage, node: str) -> "contextlib.AbstractContextManager[Any]":
    return HOG.on(stage, node, 0)


def _nothing(_stage: Stage, _node: str) -> "contextlib.AbstractContextManager[Any]":
    return contextlib.nullcontext()


DISTURBANCES = (
    Disturbance(name="nothing at all", times=3, seconds=6, act=_nothing),
    Disturbance(name="evaluation of 12 s", times=5, seconds=12, order="evaluation"),
    Disturbance(name="checkpoint of 20 s by one rank", times=4, seconds=20, order="checkpoint", who="one"),
    Disturbance(name="checkpoint of 20 s by all", times=2, seconds=20, order="checkpoint"),
    Disturbance(name="one batch that takes 2.5 s", times=5, seconds=2.5, order="slow-batch", who="one"),
    Disturbance(name="a flood of output", times=3, seconds=3, order="talk", who="one"),
    Disturbance(name="a noisy neighbour", times=5, seconds=7, act=_load_cpu),
    Disturbance(name="management network flaps", times=5, seconds=2, act=_drop_management, again=2),
    Disturbance(name="sshd stops and comes back", times=3, seconds=3, act=_stop_sshd),
    Disturbance(name="the cable blinks", times=3, seconds=0.4, act=_pull_cable),
    Disturbance(
        name="slow import of one rank",
        times=2,
        seconds=15,
        env=(("FAULT", "slow-import"), ("FAULT_PLACE", "import"), ("FAULT_RANK", "3")),
    ),
    Disturbance(
        name="long first step",
        times=2,
        seconds=12,
        env=(("FAULT", "long-first-step"), ("FAULT_STEP", "0"), ("FAULT_RANK", "all")),
    ),
)


def list_windows(*, few: bool = False) -> list[tuple[str, Disturbance, int]]:
    """The observation windows: name, disturbance and its number; with `few`, five short ones."""
    if few:
        short = [each for each in DISTURBANCES if not each.env and each.seconds <= 12][:5]
        return [(f"{each.name} 1", each, 1) for each in short]
    return [(f"{each.name} {number}", each, number) for each in DISTURBANCES for number in range(1, each.times + 1)]


def watch_window(stage: Stage, session: Session, disturbance: Disturbance, number: int) -> dict[str, Any]:
    """Observes one window and returns its findings; there should be none."""
    if disturbance.env:
        session.close()
        with stage.launch(env=dict(disturbance.env)) as running:
            warm = wait_until(lambda: len(stage.marks("warm")) == RANKS or running.over, START_SECONDS)
            return _collect_result(running, 0.0, moved=warm)
    running = session.running()
    since = time.time()
    node, rank = f"n{number % 4 + 1}", (3 * number) % RANKS
    with _disturb_run(stage, disturbance, node, rank):
        pass
    before = running.step()
    moved = wait_until(lambda: running.over or running.step() >= before + 3, 60)
    until = time.time() + _AFTER_SECONDS
    wait_until(lambda: time.time() > until, 2 * _AFTER_SECONDS)
    return _collect_result(running, since, moved=moved)


@contextlib.contextmanager
def _disturb_run(stage: Stage, disturbance: Disturbance, node: str, rank: int) -> Iterator[None]:
    if disturbance.order:
        stage.order(disturbance.order, rank if disturbance.who == "one" else "all")
        wait_until(lambda: stage.marks("effect"), 20)
    for _ in range(disturbance.again):
        with disturbance.act(stage, node) if disturbance.act else contextlib.nullcontext():
            until = time.time() + disturbance.seconds
            wait_until(lambda: time.time() > until, disturbance.seconds + 5)  # noqa: B023 - it is called in this turn only
    yield


def _collect_result(running: Running, since: float, *, moved: bool) -> dict[str, Any]:
    said = [
        f"{finding['code']} {finding['nodes']}: {finding['seen'][:250]}" for _at, finding in running.verdicts(since)
    ]
    ended = running.over
    return {
        "false": bool(said) or ended,
        "said": said,
        "moved": moved and not ended,
        "load": round(os.getloadavg()[0], 1),
        "tail": running.output[-800:] if ended else "",
    }
