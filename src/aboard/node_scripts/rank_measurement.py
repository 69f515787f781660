"""What a rank of the collective test measures: pairs of nodes, then all-reduce and all-gather by size.

Bandwidths are those of nccl-tests (doc/PERFORMANCE.md there): the algorithm's is size / time, the bus's is that times
2(n-1)/n for an all-reduce and (n-1)/n for an all-gather, whose size is what each rank has at its end.
"""

from __future__ import annotations

import os
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from aboard.node_scripts.rank_watch import RankWatch

_PATIENCE = timedelta(seconds=600)
_SLOW_PAIR_SECONDS = 0.1


def measure_collectives(watch: RankWatch) -> None:
    """Joins the process group, measures, and ends the process when all others are done."""
    task, backend = watch.task, watch.task["backend"]
    if backend == "nccl":
        if not torch.cuda.is_available():
            raise RuntimeError("torch can't use the GPUs: " + find_cuda_error())
        torch.cuda.set_device(task["local"])
        watch.log_folder = tempfile.mkdtemp(prefix="aboard-nccl-")
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,BOOTSTRAP,ENV,GRAPH")
        os.environ["NCCL_DEBUG_FILE"] = os.path.join(watch.log_folder, "%h.%p")
    torch.set_num_threads(1)
    watch.findings.update(torch=torch.__version__, backend=backend)
    if backend == "nccl":
        watch.findings["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    own_store = open_store(watch, 0) if watch.rank == 0 else None
    # Later than the roster's own deadline: who is ready must not be taken for the one that isn't.
    watch.enter_phase("ready", task["meet"] + task["load"] + task["stall"])
    watch.send(ready=own_store.port if own_store else 0)
    watch.may_go.wait()
    watch.enter_phase("store", task["connect"])
    store = own_store or open_store(watch, watch.store_port)
    watch.enter_phase("connect", task["connect"])
    dist.init_process_group(backend, store=store, rank=watch.rank, world_size=watch.world, timeout=_PATIENCE)
    CollectiveTimer(watch).measure_all()
    watch.enter_phase("done", task["stall"])
    watch.send(done=True)
    watch.may_end.wait(task["stall"])
    watch.finish()


def find_cuda_error() -> str:
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0]
    return "it finds none, although the driver has some"


def open_store(watch: RankWatch, port: int) -> Any:
    tcp_store: Any = vars(dist)["TCPStore"]  # not in its types
    return tcp_store(watch.task["address"], port, watch.world, watch.rank == 0, _PATIENCE, False)


class CollectiveTimer:
    """Times each pair, and each collective by size; what it finds is in the watch's report at once."""

    def __init__(self, watch: RankWatch) -> None:
        self._watch, self._task, self._rank, self._world = watch, watch.task, watch.rank, watch.world
        self._nccl = watch.task["backend"] == "nccl"
        self._device = "cuda" if self._nccl else "cpu"
        self._patience = 4 if self._nccl else 1
        self._rows: list[list[Any]] = []
        self._wrong: list[list[Any]] = []
        self._pairs: dict[int, float] = {}

    def measure_all(self) -> None:
        self._watch.findings.update(rows=self._rows, wrong=self._wrong, pairs=self._pairs)
        # The first collective makes the connections.
        self._watch.enter_phase("connect", self._task["connect"] * self._patience)
        self._find_largest(0.0)
        if "pairs" in self._task["what"]:
            self._measure_pairs()
        for name, prepare in (("all_reduce", self._prepare_all_reduce), ("all_gather", self._prepare_all_gather)):
            began = time.monotonic()
            for size in self._task["sizes"]:
                self._enter_phase(name)
                if not self._measure_size(name, *prepare(size), began):
                    break

    def _enter_phase(self, phase: str) -> None:
        self._watch.enter_phase(phase, self._task["stall"] * self._patience)

    def _find_largest(self, *values: float) -> list[float]:
        """The largest of each, the same on all ranks: how often to repeat must not differ."""
        largest = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        found: list[float] = largest.tolist()
        return found

    def _synchronize(self) -> None:
        if self._nccl:
            torch.cuda.synchronize()

    def _measure_size(
        self, name: str, action: Callable[[], object], check: Callable[[], list[int] | None], size: int, began: float
    ) -> bool:
        """Whether there is time for the next size."""
        first = time.monotonic()
        action()
        self._synchronize()
        slowest = self._find_largest(time.monotonic() - first)[0]
        sources = check()
        if sources is not None:
            self._wrong.append([name, size, sources])
        seconds = self._task["seconds"] / len(self._task["sizes"])
        rounds = max(1, min(self._task["rounds"], int(seconds / max(slowest, 1e-5))))
        self._enter_phase(name)
        self._find_largest(0.0)
        first = time.monotonic()
        for _ in range(rounds):
            action()
        self._synchronize()
        took, spent = self._find_largest((time.monotonic() - first) / rounds, time.monotonic() - began)
        self._rows.append([name, size, rounds, took])
        # The next is four times as large: once to warm up, once to measure.
        return bool(spent + 8 * took < self._task["most"])

    def _make_pattern(self, count: int) -> torch.Tensor:
        return (torch.arange(count, device=self._device) % 97).to(torch.float32)

    def _prepare_all_reduce(self, size: int) -> tuple[Callable[[], object], Callable[[], list[int] | None], int]:
        """The action, the check of its first result, and the size in bytes."""
        count = max(1, size // 4)
        base = self._make_pattern(count)
        data = base + (self._rank + 1)
        wanted = base * self._world + self._world * (self._world + 1) // 2

        def check() -> list[int] | None:
            right = torch.equal(data, wanted)
            data.zero_()
            return None if right else []

        return lambda: dist.all_reduce(data), check, 4 * count

    def _prepare_all_gather(self, size: int) -> tuple[Callable[[], object], Callable[[], list[int] | None], int]:
        """As for the all-reduce; the check lists the ranks whose part is wrong."""
        count = max(1, size // 4 // self._world)
        base = self._make_pattern(count)
        data = base + (self._rank + 1)
        out = torch.zeros(count * self._world, dtype=torch.float32, device=self._device)
        parts = list(out.chunk(self._world))

        def check() -> list[int] | None:
            return [rank for rank, part in enumerate(parts) if not torch.equal(part, base + (rank + 1))] or None

        def action() -> None:
            if self._nccl:
                dist.all_gather_into_tensor(out, data)
            else:
                dist.all_gather(parts, data)

        return action, check, 4 * count * self._world

    def _measure_pairs(self) -> None:
        """Each node with each other while they are few, else with those that differ in one bit of their number."""
        games: Sequence[Sequence[tuple[int, int]]] = self._task["games"]
        for game in games:
            self._enter_phase("pairs")
            other = next((b if a == self._rank else a for a, b in game if self._rank in {a, b}), None)
            if other is not None:
                self._watch.findings["partner"] = other
                self._pairs[other] = self._measure_pair(other)
                self._watch.findings.pop("partner")
            self._enter_phase("pairs")
            self._find_largest(0.0)

    def _measure_pair(self, other: int) -> float:
        """The rate of an exchange, in Mbit/s."""
        data = torch.zeros(self._task["pair"] // 4, device=self._device)
        into = torch.empty_like(data)
        repeats = torch.zeros(1, dtype=torch.int64, device=self._device)

        def swap() -> float:
            first = time.monotonic()
            ops = [dist.P2POp(dist.isend, data, other), dist.P2POp(dist.irecv, into, other)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            self._synchronize()
            return time.monotonic() - first

        took = swap()
        # One of the two decides how often, and tells.
        if self._rank < other:
            repeats.fill_(1 if took > _SLOW_PAIR_SECONDS else 5)
            dist.send(repeats, other)
        else:
            dist.recv(repeats, other)
        best = min(swap() for _ in range(int(repeats)))
        return float(self._task["pair"] * 8 / 1e6 / max(best, 1e-6))
