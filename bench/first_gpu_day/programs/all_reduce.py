"""A script under launch: names its GPU, sums over all ranks, times all-reduces, and dumps torch's flight record."""

import base64
import json
import os
import socket
import sys
import time
import zlib

import torch
import torch.distributed as dist

MOST_PIECES, PIECE = 60, 30_000


def report(**values):
    print("first-gpu-day " + json.dumps(values), flush=True)


def measure(size, rounds):
    """Seconds of an all-reduce of so many bytes, on the slowest rank."""
    values = torch.ones(size // 4, device="cuda")
    for _ in range(2):
        dist.all_reduce(values)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(rounds):
        dist.all_reduce(values)
    torch.cuda.synchronize()
    took = torch.tensor([(time.perf_counter() - began) / rounds], device="cuda")
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item()


def dump_flight_record():
    dump = getattr(getattr(torch._C, "_distributed_c10d", None), "_dump_nccl_trace", None)
    if dump is None:
        report(dump="this torch has no NCCL")
        return
    packed = base64.b64encode(zlib.compress(dump())).decode()
    pieces = [packed[at : at + PIECE] for at in range(0, len(packed), PIECE)]
    if len(pieces) > MOST_PIECES:
        report(dump=f"{len(packed)} bytes are too many")
        return
    for number, piece in enumerate(pieces):
        report(piece=piece, number=number, of=len(pieces))


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.full((1024,), float(rank), device="cuda")
dist.all_reduce(total)
report(
    gpu=torch.cuda.get_device_name(), host=socket.gethostname(), right=bool((total == world * (world - 1) / 2).all())
)
size = 1 << 12
while size <= int(sys.argv[1]):
    seconds = measure(size, 20 if size <= 1 << 24 else 5)
    if rank == 0:
        report(size=size, seconds=seconds, bus=2 * (world - 1) / world * size / seconds / 1e9)
    size *= 16
dump_flight_record()
dist.barrier()
dist.destroy_process_group()
