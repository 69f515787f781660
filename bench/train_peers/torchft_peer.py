"""The trainer of recovery_peer.py with torchft: each host is a replica group; the others go on without one that died.

    torchft_peer.py MODEL OUT

A group that starts anew gets the weights from another one. Each step is a line of OUT/HOST.jsonl, with the number of
groups that took part. TORCHFT_LIGHTHOUSE is set, and so are torchrun's variables for the group.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from transformers import AutoModelForCausalLM

out = Path(sys.argv[2])
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
inner = torch.optim.AdamW(model.parameters(), lr=1e-3)


def load_state(state: dict) -> None:
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
    load_state_dict=load_state,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
    min_replica_size=1,
    replica_id=os.uname().nodename,
)
parallel = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, inner)
while True:
    optimizer.zero_grad()
    ids = torch.randint(3, model.config.vocab_size, (4, 64))
    parallel(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    line = {
        "step": manager.current_step(),
        "time": time.time(),
        "groups": manager.num_participants(),
        "pid": os.getpid(),
    }
    with (out / f"{os.uname().nodename}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
