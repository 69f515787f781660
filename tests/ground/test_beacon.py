"""The beacon under a real torch: its phases and steps, without a change to the script and without a trace in it."""

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from deadlines import until, wait_until
from made_events import list_fields
from supervisor_runs import Run, held

from aboard.agent.beacon.report_receiver import ACTIVITIES
from aboard.core.plan.plan import Start
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.transport.node_session import NodeSession

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("torch_b")]

PHASES = ["started", "torch", "store", "group", "collective"]


@pytest.fixture
def run() -> Iterator[Run]:
    """A run on this machine, of which nothing must be left."""
    made = Run()
    yield made
    wait_until(made.gone, 5)


def job(run: Run, source: str, *, ranks: int, then: Any = None, **env: str) -> list[dict[str, Any]]:
    """Runs a script as torchrun would, to its end or to what `then` waits for; returns the samples."""
    samples: list[dict[str, Any]] = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def story(hold: NodeSession) -> None:
        hold._on_samples = lambda _node, told: samples.append(told)
        for rank in range(ranks):
            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), **env}
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
            argv = (sys.executable, "-c", source)
            await hold.start(Start(child=f"rank{rank}", argv=argv, env={**shared, **own}, beacon=True))
        if then is None:
            await until(lambda: sum(event.kind == "exited" for event in run.events) == ranks, 120)
            await until(lambda: all(run.finished(f"rank{rank}") for rank in range(ranks)))
        else:
            await then(hold, samples)

    held(run, story)
    return samples


def phases(run: Run, child: str) -> list[str]:
    return [list_fields(event)["phase"] for event in run.events if event.kind == "phase" and event.child == child]


def ended_well(run: Run, ranks: int) -> None:
    for rank in range(ranks):
        assert run.output(f"rank{rank}", "stderr") == b""
    assert [list_fields(event)["code"] for event in run.events if event.kind == "exited"] == [0] * ranks


def test_phases_come_in_order_and_leave_nothing_behind(run: Run) -> None:
    """Two ranks over gloo: all five phases in each, after which torch's functions are torch's own again."""
    job(
        run,
        """
import os
import torch, torch.distributed as dist
from torch._C._distributed_c10d import TCPStore, Work
kept = dist.all_reduce
plain = Work.wait, dist._verify_params_across_processes
dist.init_process_group("gloo")
followed = Work.wait, dist._verify_params_across_processes
assert all(before is not now for before, now in zip(plain, followed))
dist.all_reduce(torch.ones(1))
assert (Work.wait, dist._verify_params_across_processes) == plain
assert type(vars(TCPStore)["__init__"]).__name__ == "instancemethod", TCPStore.__init__
assert dist.all_reduce is kept and kept.__module__.startswith("torch.")
assert dist.init_process_group.__module__ == "torch.distributed.distributed_c10d"
from torch._C._distributed_c10d import _dump_fr_trace
assert b"all_reduce" in _dump_fr_trace()
print(os.environ["TORCH_FR_BUFFER_SIZE"], os.environ["TORCH_FR_DUMP_TEMP_FILE"])
dist.destroy_process_group()
""",
        ranks=2,
    )
    ended_well(run, 2)
    assert phases(run, "rank0") == phases(run, "rank1") == PHASES
    times = [event.at for event in run.events if event.kind == "phase" and event.child == "rank1"]
    assert times == sorted(times)
    assert run.output("rank0").decode().split() == ["2000", f"{run.place}/flight."]


HELD = """
import datetime, os, torch
from torch._C._distributed_c10d import TCPStore
other = TCPStore("127.0.0.1", 0, is_master=True)
where, master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), os.environ["RANK"] == "0"
TCPStore(*where, 2, master, datetime.timedelta(seconds=60)).set("a", "b")
print(type(vars(TCPStore)["__init__"]).__name__, isinstance(other, torch.distributed.Store))
"""


def test_a_store_is_held_until_its_master_listens(run: Run) -> None:
    """It connects only after the release, unlike a store of the script's own; torch's class is its own again."""
    samples: list[dict[str, Any]] = []

    def listening() -> list[int]:
        return [list_fields(event)["port"] for event in run.events if event.kind == "listening"]

    async def story(hold: NodeSession) -> None:
        hold._on_samples = lambda _node, told: samples.append(told)
        port = await hold.reserve(0)

        async def start(rank: str) -> None:
            env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": rank}
            argv = (sys.executable, "-c", HELD)
            await hold.start(Start(child=rank, argv=argv, env=env, beacon=True), await_port=port)

        await start("1")
        await until(lambda: samples and samples[-1]["children"]["1"].get("doing") == ACTIVITIES.index("rendezvous"), 60)
        await hold.release(port + 1)
        await start("0")
        await until(listening, 60)
        assert listening() == [port]
        assert run.output("1") == b""
        await hold.release(port)
        await until(lambda: all(run.finished(rank) for rank in "01"), 60)

    held(run, story)
    assert {run.output(rank) for rank in "01"} == {b"instancemethod True\n"}


@pytest.mark.parametrize(
    "source",
    [
        """
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
""",
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
mesh = init_device_mesh("cpu", (2,))
whole = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)]).redistribute(mesh, [Replicate()]).to_local()
assert whole.sum() == 8
parameter = torch.nn.Parameter(whole)
optimizer = torch.optim.SGD([parameter], lr=0.1)
parameter.grad = torch.ones_like(parameter)
optimizer.step()
""",
    ],
    ids=["DDP", "DTensor"],
)
def test_collectives_that_are_not_pythons_are_seen_too(run: Run, source: str) -> None:
    """Those of DDP when it begins, functional ones at the next step at the latest."""
    job(run, f"import torch\n{source}\ntorch.distributed.destroy_process_group()", ranks=2)
    ended_well(run, 2)
    assert phases(run, "rank0") == phases(run, "rank1") == PHASES


def test_steps_are_those_of_the_first_optimizer(run: Run) -> None:
    """However many there are, whatever is accumulated; a compiled step is not disturbed, and counts for nothing."""

    async def counted(hold: NodeSession, samples: list[dict[str, Any]]) -> None:
        await until(lambda: b"done" in run.output("rank0") or "exited" in run.kinds("rank0"), 120)
        await until(lambda: samples[-1]["children"]["rank0"].get("step") == 7)

    samples = job(
        run,
        """
import time
import torch
def optimizer():
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    return torch.optim.SGD([{"params": [parameter]} for parameter in parameters], lr=0.1)
first, second, third = optimizer(), optimizer(), optimizer()
compiled = torch.compile(third.step, backend="eager")
for _ in range(3):
    compiled()
# Torch breaks its own graph here once; nothing of ours may be among the reasons.
assert "aboard" not in str(torch._dynamo.utils.counters["graph_break"])
for _ in range(7):
    time.sleep(0.21)
    first.step()
    second.step()
    second.step()
print("done", flush=True)
time.sleep(300)
""",
        ranks=1,
        then=counted,
    )
    assert b"Traceback" not in run.output("rank0", "stderr")
    assert 0.2 < samples[-1]["children"]["rank0"]["step_seconds"] < 2
    assert phases(run, "rank0") == ["started", "torch"]


def test_loader_workers_are_clean(run: Run) -> None:
    """No variable, no hook, no word; by spawn they are as any new program, which the unit tests hold."""
    job(
        run,
        """
import os, sys
import torch
class Look(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, _number):
        names = [name for name in os.environ if name.startswith("ABOARD_") and name != "ABOARD_RUN_ID"]
        return torch.tensor([len(names), sys.excepthook.__module__ == "aboard_beacon", "PYTHONPATH" in os.environ])
loader = torch.utils.data.DataLoader(Look(), num_workers=2, multiprocessing_context="fork")
assert sum(part.sum() for part in loader) == 0
""",
        ranks=1,
    )
    ended_well(run, 1)
    assert phases(run, "rank0") == ["started", "torch"]


def test_a_recorded_failure_is_told_once(run: Run) -> None:
    """The script uses torch's error file: there are two reports of one exception, and the beacon's is told."""
    job(
        run,
        """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("recorded")
main()
""",
        ranks=1,
    )
    raised = [list_fields(event) for event in run.events if event.kind == "raised"]
    assert [(told["type"], told["message"]) for told in raised] == [("ValueError", "recorded")]
    assert "in main" in raised[0]["trace"]


def test_stacks_of_a_rank_that_waits_for_another(run: Run) -> None:
    """One is in a collective that the other never joins: both say where they are."""
    found: dict[str, Untrusted] = {}

    async def stuck(hold: NodeSession, _samples: list[dict[str, Any]]) -> None:
        await until(lambda: run.output("rank0") and run.output("rank1"), 120)
        async with asyncio.timeout(20):
            while "in all_reduce" not in found.get("rank0", NO_TEXT) or "in elsewhere" not in found.get(
                "rank1", NO_TEXT
            ):
                found.update(await hold.stacks())

    job(
        run,
        """
import os, time
import torch, torch.distributed as dist
def elsewhere(): time.sleep(300)
dist.init_process_group("gloo")
print("ready", flush=True)
dist.all_reduce(torch.ones(1)) if os.environ["RANK"] == "0" else elsewhere()
""",
        ranks=2,
        then=stuck,
    )
    assert "distributed_c10d.py" in found["rank0"]
    assert phases(run, "rank0") == phases(run, "rank1") == PHASES[:-1]


def test_an_older_torch_is_left_alone(run: Run, tmp_path: Any) -> None:
    """One that lacks all that we look for is imported and used as ever, and says the less."""
    for name, text in {
        "torch/__init__.py": "__version__ = 'unheard of'\nfrom torch import distributed, optim\n",
        "torch/distributed/__init__.py": "from torch.distributed.distributed_c10d import *\n",
        "torch/distributed/distributed_c10d.py": "def init_process_group(*args, **named):\n    return args, named\n",
        "torch/optim/__init__.py": "import torch.optim.optimizer\n",
        "torch/optim/optimizer.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    job(
        run,
        "import json, os, torch\nprint(json.dumps(torch.distributed.init_process_group(1, b=2)))\n"
        "assert torch.__spec__.loader.exec_module.__func__ and not vars(torch.__loader__).get('exec_module')",
        ranks=1,
        PYTHONPATH=str(tmp_path),
    )
    ended_well(run, 1)
    assert json.loads(run.output("rank0")) == [[1], {"b": 2}]
    assert phases(run, "rank0") == ["started", "torch", "group"]
