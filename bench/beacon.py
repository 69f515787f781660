"""The beacon: what it costs a training step, and what the keeper's looking costs a node."""

import asyncio
import json
import secrets
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Self

from aboard.agent import process_tree
from aboard.agent.supervisor.resource_usage import ResourceSampler
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.plan.plan import Start
from aboard.core.run.lease import Lease
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession
from figures import Figures, main

CHILDREN = 8

# A rank: a small model, trained with the beacon's hook and without it in turns, so that whatever else the machine does
# falls on both. The rest of the beacon costs nothing in a step: it is gone after the first collective. Its step takes
# some 20 ms: one that trains a language model takes longer.
RANK = """
import json, sys, time
import torch
from torch.optim import optimizer as room
torch.set_num_threads(1)
rounds, steps = int(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(256, 512)
hooks = dict(room._global_optimizer_post_hooks)
assert len(hooks) == 1, hooks

def train():
    # Of the processor, not of the wall: the beacon never waits, and others on the machine are not measured along.
    began = time.thread_time()
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return (time.thread_time() - began) / steps

def with_beacon():
    room._global_optimizer_post_hooks.update(hooks)
    return train()

def without():
    room._global_optimizer_post_hooks.clear()
    return train()

def timed(*args):
    began = time.thread_time()
    hook(*args)
    inside.append(time.thread_time() - began)

hook, inside = next(iter(hooks.values())), []
with_beacon(), without()
ours, bare, again = [], [], []
ways = [(with_beacon, ours), (without, bare), (without, again)]
for number in range(rounds):
    # None is always first.
    for way, times in ways[number % 3 :] + ways[: number % 3]:
        times.append(way())
# Where it stands, behind the arithmetic of a step that has used up the caches: a loop of calls would flatter it.
room._global_optimizer_post_hooks.clear()
room._global_optimizer_post_hooks[0] = timed
for _ in range(100):
    train()
print(json.dumps([ours, bare, again, inside]))
"""
# As busy with words as a rank can be: a report whenever there may be one, and a worker beside it.
TALKER = """
import gc, os, time
if os.fork():
    beacon = next(found for found in gc.get_objects() if type(found).__name__ == "Beacon")
    step = 0
    while True:
        step += 1
        beacon.mention('"step":%d,"seconds":0.2' % step)
        time.sleep(0.2)
time.sleep(300)
"""


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's one switch
    """Figures of the beacon."""
    asyncio.run(_step(figures, *((150, 4) if quick else (1200, 4))))
    asyncio.run(_looking(figures, 10 if quick else 60))


async def _step(figures: Figures, rounds: int, steps: int) -> None:
    """A rank with its beacon, at a real keeper; the bar is on the median over rounds, each with and without."""
    async with _Held() as held:
        await held.start("rank0", RANK, str(rounds), str(steps))
        text = await held.output("rank0")
    ours, bare, again, inside = json.loads(text)
    # What two equal halves differ by on this machine, now: a ratio that is closer to 1 than this says nothing.
    control = abs(_ratio(again, bare) - 1)
    step = statistics.median(bare)
    note = f"{step * 1e6:.0f} µs without, {rounds} rounds; without / without differs by {control:.4f}"
    figures.add("a step with the beacon / without", _ratio(ours, bare), 1.005, unit="×", note=note)
    mean = statistics.fmean(inside)
    note = f"{mean * 1e6:.1f} µs with its reports, median {statistics.median(inside) * 1e6:.1f} µs"
    figures.add("the hook inside a step, share of it", 100 * mean / step, 0.5, unit="%", note=note)


def _ratio(ours: list[float], bare: list[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(ours, bare, strict=True))


async def _looking(figures: Figures, seconds: int) -> None:
    """Eight ranks that report five times a second: what the gauges use, and what the whole keeper uses."""
    gauges = ResourceSampler()
    async with _Held() as held:
        for number in range(CHILDREN):
            await held.start(f"rank{number}", TALKER)
        await held.until(lambda: len(held.steps) == CHILDREN)
        roots = dict(held.pids)
        keeper = process_tree.read_parents()[roots["rank0"]]
        gauges.children(roots)
        began, before, spent = time.monotonic(), _runtime(keeper), 0.0
        for _ in range(seconds):
            await asyncio.sleep(1.0)
            since = time.process_time()
            gauges.children(roots)
            gauges.node()
            spent += time.process_time() - since
        took, used = time.monotonic() - began, _runtime(keeper) - before
    processes = len(process_tree.read_parents())
    note = f"{CHILDREN} ranks with a worker each, {processes} processes on the node, {took:.0f} s"
    figures.add("gauges, share of a core", 100 * spent / took, 0.5, unit="%", note=note)
    figures.add("the whole keeper, share of a core", 100 * used / took, 1.5, unit="%", note="beats and reports too")


def _runtime(pid: int) -> float:
    """The processor time of a process, finer than the clock ticks of its stat: proc(5)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


class _Held:
    """A run on this machine; it is ended when it is left."""

    def __init__(self) -> None:
        self.pids: dict[str, int] = {}
        self.steps: set[str] = set()
        self._ended: dict[str, bool] = {}
        self._printed: dict[str, bytes] = {}
        self._hold = NodeSession(
            Node(name="here", transport=TransportKind.LOCAL),
            NodeDialer(),
            run=f"bench-{secrets.token_hex(6)}",
            key=secrets.token_hex(8),
            lease=Lease(seconds=30.0, beat=2.0, grace=0.1),
            on_event=self._take,
            on_piece=self._read,
            on_samples=lambda _node, told: self.steps.update(name for name in told["children"]),
        )

    async def __aenter__(self) -> Self:
        await self._hold.begin()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._hold.end(grace=0.0)
        await asyncio.wait_for(self._hold.wait_gone(), 20)
        await self._hold.leave()

    async def start(self, child: str, source: str, *args: str) -> None:
        await self._hold.start(Start(child=child, argv=(sys.executable, "-c", source, *args), beacon=True))

    async def output(self, child: str) -> bytes:
        """All that it printed, when it has ended."""
        await self.until(lambda: len(self._ended) >= 2, 600)
        return self._printed[f"{child}/stdout"]

    async def until(self, condition: Any, seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - polls a process, which has no event
                await asyncio.sleep(0.05)

    def _take(self, event: Any) -> None:
        if event.kind == "started":
            self.pids[event.child] = event.data["pid"]
        elif event.kind == "raised":
            sys.exit(f"{event.child}: {event.data['trace']}")

    def _read(self, piece: Any) -> None:
        name = f"{piece.child}/{piece.stream}"
        self._printed[name] = self._printed.get(name, b"") + piece.data
        if piece.end:
            self._ended[name] = True


if __name__ == "__main__":
    main("beacon", measure)
