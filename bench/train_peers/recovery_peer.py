"""A small trainer as people write them, for torchrun and ft_launcher: it resumes from its own checkpoint.

    recovery_peer.py MODEL OUT

Every 20 steps rank 0 saves; each step is a line of OUT/steps.jsonl with its time and process.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

out = Path(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
saved, done = out / "checkpoint.pt", 0
if saved.exists():
    state = torch.load(saved)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["step"]
for step in range(done + 1, 1_000_000):
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + rank)
    ids = torch.randint(3, model.module.config.vocab_size, (4, 64), generator=generator)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        # An agent whose own workers are healthy restarts them without counting it.
        line = {"step": step, "time": time.time(), "pid": os.getpid()}
        with (out / "steps.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if step % 20 == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, out / "new.pt")
            (out / "new.pt").rename(saved)
