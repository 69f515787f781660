"""The beacon: its cost in a training step, and the supervisor's CPU use on a node."""

import asyncio
import json
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from aboard.agent import process_tree
from aboard.agent.supervisor.resource_usage import ResourceSampler
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.plan.plan import Start
from aboard.core.run.event_kinds import RankException, Started
from aboard.core.run.lease import Lease
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession
from figures import Figures, main

CHILDREN = 8

# A rank: a small model, trained alternately with the beacon's hook and without it, so that other load on the machine
# affects both. The rest of the beacon costs nothing in a step: it is removed after the first collective. A step takes
# about 20 ms; that of a language model takes longer.
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
    # CPU time, not wall time: the beacon never waits, and other processes are not measured.
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
    # The order rotates.
    for way, times in ways[number % 3 :] + ways[: number % 3]:
        times.append(way())
# Measured inside a step, whose arithmetic has flushed the caches: a tight loop of calls would look faster.
room._global_optimizer_post_hooks.clear()
room._global_optimizer_post_hooks[0] = timed
for _ in range(100):
    train()
print(json.dumps([ours, bare, again, inside]))
"""
# A rank whose flight recorder is full of new collectives at every sample, as with hundreds of them per second.
COLLECTIVES = """
import json, sys, time
import torch
import torch.distributed as dist
beacon, flight = sys.modules["aboard_beacon"].armed, sys.modules["aboard_beacon_flight"]
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=0, world_size=1)
arrivals, batch, times = flight.Arrivals(beacon), torch.zeros(1), []
for _ in range(int(sys.argv[1])):
    for _ in range(2000):
        dist.all_reduce(batch)
    began = time.thread_time()
    arrivals.sample()
    times.append(time.thread_time() - began)
assert len(json.loads(arrivals._describe())) == 1
print(json.dumps([times, arrivals._every]))
"""
# The busiest reporter possible: a report whenever one is allowed, and a worker process.
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


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures the beacon's cost in a step, and the supervisor's CPU use."""
    asyncio.run(_measure_step(figures, *((150, 4) if quick else (1200, 4))))
    asyncio.run(_measure_supervisor(figures, 10 if quick else 60))


async def _measure_step(figures: Figures, rounds: int, steps: int) -> None:
    """A rank with its beacon under a real supervisor; the limit applies to the median ratio over rounds."""
    async with _LocalRun() as held:
        await held.start("rank0", RANK, str(rounds), str(steps))
        text = await held.output("rank0")
    async with _LocalRun() as held:
        with tempfile.TemporaryDirectory() as folder:
            await held.start("rank0", COLLECTIVES, str(10 if rounds < 1000 else 50), f"{folder}/store")
            samples, every = json.loads(await held.output("rank0"))
    ours, bare, again, inside = json.loads(text)
    # The difference of two identical measurements on this machine: a ratio closer to 1 than this is noise.
    control = abs(_compute_ratio(again, bare) - 1)
    step = statistics.median(bare)
    note = f"{step * 1e6:.0f} µs without, {rounds} rounds; noise (without / without) {control:.4f}"
    figures.add("step time with beacon / without", _compute_ratio(ours, bare), 1.005, unit="×", note=note)
    mean = statistics.fmean(inside)
    note = f"{mean * 1e6:.1f} µs including reports, median {statistics.median(inside) * 1e6:.1f} µs"
    figures.add("beacon hook, share of a step", 100 * mean / step, 0.5, unit="%", note=note)
    sample = statistics.median(samples)
    note = f"a sample of 2,000 collectives takes {sample * 1e3:.1f} ms, every {every:g} s, on all ranks at once"
    share = sample / every
    figures.add("sampling of collectives, share of the time", 100 * share, 0.4, unit="%", note=note)
    figures.add("beacon in all, share of a step", 100 * (mean / step + share), 0.5, unit="%", note="hook and sampling")


def _compute_ratio(ours: list[float], bare: list[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(ours, bare, strict=True))


async def _measure_supervisor(figures: Figures, seconds: int) -> None:
    """Eight ranks that report five times a second: CPU use of the resource sampler and of the whole supervisor."""
    gauges = ResourceSampler()
    async with _LocalRun() as held:
        for number in range(CHILDREN):
            await held.start(f"rank{number}", TALKER)
        await held.until(lambda: len(held.steps) == CHILDREN)
        roots = dict(held.pids)
        supervisor = process_tree.read_parents()[roots["rank0"]]
        gauges.children(roots)
        began, before, spent = time.monotonic(), _read_cpu_seconds(supervisor), 0.0
        for _ in range(seconds):
            await asyncio.sleep(1.0)
            since = time.process_time()
            gauges.children(roots)
            gauges.node()
            spent += time.process_time() - since
        took, used = time.monotonic() - began, _read_cpu_seconds(supervisor) - before
    processes = len(process_tree.read_parents())
    note = f"{CHILDREN} ranks with a worker each, {processes} processes on the node, {took:.0f} s"
    figures.add("resource sampler, share of a core", 100 * spent / took, 0.5, unit="%", note=note)
    figures.add(
        "whole supervisor, share of a core", 100 * used / took, 1.5, unit="%", note="including heartbeats and reports"
    )


def _read_cpu_seconds(pid: int) -> float:
    """The CPU time of a process; finer than the clock ticks in its stat file: proc(5)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


class _LocalRun:
    """A run on this machine; leaving the context terminates it."""

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
            on_output=self._read,
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
        """Everything it printed, once it has exited."""
        await self.until(lambda: len(self._ended) >= 2, 600)
        return self._printed[f"{child}/stdout"]

    async def until(self, condition: Any, seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - polls a process, which has no event
                await asyncio.sleep(0.05)

    def _take(self, event: Any) -> None:
        if isinstance(event.body, Started):
            self.pids[event.child] = event.body.pid
        elif isinstance(event.body, RankException):
            sys.exit(f"{event.child}: {event.body.trace.raw()}")

    def _read(self, piece: Any) -> None:
        name = f"{piece.child}/{piece.stream}"
        self._printed[name] = self._printed.get(name, b"") + piece.data
        if piece.end:
            self._ended[name] = True


if __name__ == "__main__":
    main("beacon", measure)
