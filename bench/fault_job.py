"""A small training over Gloo in plain torch, with data, evaluations and checkpoints; one rank may get a fault.

FAULT, FAULT_RANK and FAULT_STEP give a rank its own fault (faults_own.py); a line in the file `order` does so in a
running training. Each rank writes a mark with the time when it reaches a place, so that the bench knows the phase of
the training under any launcher.
"""

import os
import sys
import time
import types
from pathlib import Path

import faults_own as own

FOLDER = Path(__file__).resolve().parent
RANK = int(os.environ["RANK"])
WARM_STEP = 14
STEP_SECONDS = 0.15
DATA, OUT = Path("/private/data"), Path("/private/out")


def mark(name: str) -> None:
    part = FOLDER / "marks" / f".{name}.{RANK}"
    part.write_text(repr(time.time()))
    part.rename(FOLDER / "marks" / f"{name}.{RANK}")


mark("started")
own.at("import", RANK)

import torch  # noqa: E402 - a fault may come before
import torch.distributed as dist  # noqa: E402 - as above


def next_batch(step: int) -> torch.Tensor:
    """Reads a batch from the node's own disk."""
    with (DATA / "shard.bin").open("rb") as shard:
        shard.seek(1000 * (step % 60))
        return torch.frombuffer(bytearray(shard.read(1000)), dtype=torch.uint8).float().sum().reshape(1, 1)


def compute(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1000))


def evaluate(model: torch.nn.Linear, step: int) -> None:
    mark("evaluation")
    own.at("evaluation", RANK, step)
    until = time.monotonic() + float(os.environ.get("EVALUATION_SECONDS", "0.3"))
    while time.monotonic() < until:
        model(torch.ones(1, model.in_features))


def save_checkpoint(step: int) -> None:
    mark("checkpoint")
    own.at("checkpoint", RANK, step)
    part = OUT / f"checkpoint-{RANK}.part"
    with part.open("wb") as file:
        for _ in range(8):
            file.write(os.urandom(32768))
            file.flush()
            time.sleep(float(os.environ.get("CHECKPOINT_SECONDS", "0.2")) / 8)
    part.rename(OUT / f"checkpoint-{RANK}.pt")


def train() -> None:
    size = int(os.environ.get("SIZE", "40000"))
    model = torch.nn.Linear(size, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    steps = int(os.environ.get("STEPS", "1000000"))
    for step in range(own.fewer(steps, RANK)):
        batch = next_batch(step)
        own.at("step", RANK, step)
        own.ordered(FOLDER / "order", RANK)
        compute(float(os.environ.get("COMPUTE_SECONDS", "0")))
        loss = model(batch.expand(1, size) / 1e6).pow(2).mean() * own.factor
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if RANK == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == WARM_STEP:
            mark("warm")
        if step % 40 == 39:
            evaluate(model, step)
        if step % 60 == 24:
            save_checkpoint(step)
        time.sleep(STEP_SECONDS)


own.mark = mark
mark("imported")
own.at("init", RANK)
mark("join")
dist.init_process_group("gloo", **own.options(RANK))
mark("group")
# An optimizer imports torch's compiler, which is not used here and takes as long as torch itself, times eight ranks.
compiler = types.ModuleType("torch._dynamo")
compiler.__dict__.update(disable=lambda function, *_, **__: function, graph_break=lambda: None)
sys.modules["torch._dynamo"] = compiler
train()
mark("end")
own.at("end", RANK)
dist.destroy_process_group()
