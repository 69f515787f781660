"""Scripts on hosts whose Pythons have simulated GPUs: which of them a launch gives to ranks."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import simulated_gpus
from launching import Launches, build_sandbox

pytestmark = [pytest.mark.ground, pytest.mark.nightly]

PLACE = "/shared/simulated"
DDP = """
import os
import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1, device="cuda"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.full((4, 8), 1.0 + dist.get_rank(), device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.all_reduce(loss)
seen = [os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")]
with open(f"seen-{dist.get_rank()}", "w") as file:
    print(*seen, torch.cuda.device_count(), f"{loss.item():.6f}", file=file)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Launches]:
    """Two nodes with two slots each; every Python that gets the variables has as many GPUs."""
    with build_sandbox("simulated", nodes=2, slots=2) as box:
        made = Launches(box, slots=2)
        source = Path(simulated_gpus.__file__).parent
        for name in ("startup/sitecustomize.py", "torch_patches.py", "attention_kernels.py"):
            script = f"mkdir -p {PLACE}/startup && cat > {PLACE}/{name}"
            assert box.head.run(["sh", "-c", script], input=(source / name).read_text()).returncode == 0
        yield made


def test_a_script_gets_the_gpus_of_its_slots(hosts: Launches) -> None:
    """By their numbers on the bus; the script trains on them over its own process group, as on any cluster."""
    hosts.put("ddp.py", DDP)
    variables = simulated_gpus.environment(2) | {"PYTHONPATH": f"{PLACE}/startup", "OMP_NUM_THREADS": "1"}
    env = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    done = hosts.aboard("launch", "--include", "n1:1@n2:0", *env, "--", sys.executable, "ddp.py", timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (one, loss), (other, same) = (
        hosts.box.head.run(["cat", f"{hosts.folder}/seen-{rank}"]).stdout.rsplit(maxsplit=1) for rank in (0, 1)
    )
    assert (one, other) == ("1 PCI_BUS_ID 1", "0 PCI_BUS_ID 1")
    assert loss == same
