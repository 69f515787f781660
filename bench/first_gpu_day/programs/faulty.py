"""A loop of all-reduces in which one rank fails as its words say: faulty.py kill|stop|memory|hidden|none RANK."""

import json
import os
import signal
import sys
import time

FAULT, VICTIM = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["RANK"])
# With GPUs hidden, all ranks of a node lose them, as by a line in a login script.
NODE = RANK // int(os.environ["LOCAL_WORLD_SIZE"])
STEPS, FAULT_AT, PAUSE = 600, 20, 0.25


def report(**values):
    print("first-gpu-day " + json.dumps(values), flush=True)


def fail():
    report(fault=FAULT, time=time.time())
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif FAULT == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif FAULT == "memory":
        held = []
        while True:
            held.append(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"))


if FAULT == "hidden" and VICTIM // int(os.environ["LOCAL_WORLD_SIZE"]) == NODE:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if RANK == VICTIM:
        report(fault=FAULT, time=time.time())

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
values = torch.ones(1 << 16, device="cuda")
for step in range(STEPS):
    if step == FAULT_AT and RANK == VICTIM:
        fail()
    dist.all_reduce(values)
    values /= dist.get_world_size()
    torch.cuda.synchronize()
    time.sleep(PAUSE)
dist.destroy_process_group()
