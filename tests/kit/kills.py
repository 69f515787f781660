"""Kills trainings at random moments of a save and checks what the next one finds: `kills(200)` for a bench.

One process has torch; each training is a fork of it, so a kill costs milliseconds. A training resumes, tells from
which step and whether every bit of it is right, then saves step after step and tells what was published.
"""

import json
import os
import random
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from train_crew import free_port, run_alone

PATIENCE = 60.0


@dataclass(kw_only=True)
class Toll:
    """The results; `lost`, `broken` and `strange` must be empty."""

    kills: int = 0
    published: int = 0
    resumed: int = 0
    # Kills that found a save under way, seen by what they left behind.
    torn: int = 0
    lost: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    seconds: float = 0.0


def kills(count: int, *, ranks: int = 1, seed: int = 0) -> Toll:
    """So many SIGKILLs at random moments of saving, by a process of its own."""
    toll: Toll = run_alone(_all, count, ranks, seed, patience=60.0 + 5 * count)
    return toll


def _all(count: int, ranks: int, seed: int) -> Toll:
    _warm_up()
    killer = _Killer(ranks=ranks, draw=random.Random(seed))  # noqa: S311 - no secrets
    began = monotonic()
    with TemporaryDirectory(prefix="aboard-kills-") as folder:
        while killer.toll.kills <= count and not killer.toll.strange:  # once more than asked for, to see the last one's
            killer.one(Path(folder))
    killer.toll.kills -= 1
    killer.toll.seconds = monotonic() - began
    return killer.toll


def _warm_up() -> None:
    """All that torch imports at its first use is imported here, before any fork."""
    from saving import checkpoints, progress, put, standing  # noqa: PLC0415 - the process that asks needs none of it

    with TemporaryDirectory(prefix="aboard-kills-") as place:
        engine, optimizer = standing()
        put(engine, optimizer, 1)
        store = checkpoints(Path(place))
        store.save(engine, optimizer, progress(1), wait=True)
        store.close()


@dataclass(kw_only=True)
class _Killer:
    ranks: int
    draw: random.Random
    toll: Toll = field(default_factory=Toll)
    # The step that was published for sure, and how long a save takes here.
    last: int = 0
    save: float = 0.05

    def one(self, folder: Path) -> None:
        """One training, killed within its next save or the one after."""
        port = free_port()
        lines = [_forked(partial(_train, folder, rank, self.ranks, port)) for rank in range(self.ranks)]
        try:
            self._judge(lines[0][1].next())
            for _ in range(self.draw.randint(0, 1) if self.toll.kills else 2):
                began = monotonic()
                self._count(lines[0][1].next())
                self.save = 0.7 * self.save + 0.3 * (monotonic() - began)
            signal.sigtimedwait([], self.draw.uniform(0, 1.2 * self.save))
        finally:
            # In any order, and not at once: a rank may outlive another by a little.
            for process, _ in self.draw.sample(lines, len(lines)):
                os.kill(process, signal.SIGKILL)
            for process, _ in lines:
                os.waitpid(process, 0)
        self.toll.kills += 1
        while (said := lines[0][1].next()) is not None:
            self._count(said)
        self.toll.torn += any(not (path / "manifest.json").exists() for path in folder.glob("step-*"))

    def _judge(self, said: list[Any] | None) -> None:
        if said is None or said[0] != "resumed":
            self.toll.strange.append(f"instead of resuming: {said}")
            return
        self.toll.resumed += said[1] > 0
        if said[1] < self.last:
            self.toll.lost.append(f"step {self.last} was published, step {said[1]} was found")
        if said[2]:
            self.toll.broken.append(f"step {said[1]} came back wrong: {said[2]}")
        self.last = max(self.last, said[1])

    def _count(self, said: list[Any] | None) -> None:
        if said is None or said[0] != "published":
            self.toll.strange.append(f"instead of publishing: {said}")
            return
        self.toll.published += 1
        self.last = said[1]


def _train(folder: Path, rank: int, ranks: int, port: int, tell: Callable[[list[Any]], None]) -> None:
    import torch.distributed as dist  # noqa: PLC0415 - the process that asks needs none of it
    from saving import checkpoints, progress, put, standing, world, wrong  # noqa: PLC0415 - as above

    if ranks > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    engine, optimizer = standing(width=512, layers=4)
    store = checkpoints(folder, keep=2, place=world(rank, ranks))
    found = store.resume(engine, optimizer)
    step = found.step if found else 0
    tell(["resumed", step, wrong(engine, optimizer, step) if found else []])
    while True:
        step += 1
        put(engine, optimizer, step)
        store.save(engine, optimizer, progress(step), wait=True)
        tell(["published", step])


class _Line:
    """What a training says, line by line; None once it is dead, or says nothing for too long."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._text = b""

    def next(self) -> list[Any] | None:
        while b"\n" not in self._text:
            if not select.select([self._handle], [], [], PATIENCE)[0]:
                return None
            part = os.read(self._handle, 1 << 16)
            if not part:
                return None
            self._text += part
        line, _, self._text = self._text.partition(b"\n")
        found: list[Any] = json.loads(line)
        return found

    def __del__(self) -> None:
        os.close(self._handle)


def _forked(act: Callable[[Callable[[list[Any]], None]], None]) -> tuple[int, _Line]:
    ours, theirs = os.pipe()
    process = os.fork()
    if process:
        os.close(theirs)
        return process, _Line(ours)

    def tell(said: list[Any]) -> None:
        os.write(theirs, json.dumps(said).encode() + b"\n")

    try:
        act(tell)
    except BaseException as error:  # noqa: BLE001 - told to the parent
        tell(["error", repr(error)])
    finally:
        os._exit(1)
