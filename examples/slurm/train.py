"""A stand-in for the training scripts of two guides: their options, on a model of a few thousand weights."""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    args = parse_options()
    if args.pipe_parallel_size > 1 or args.model_parallel_size > 1:
        sys.exit(
            f"--pipe_parallel_size {args.pipe_parallel_size} --model_parallel_size {args.model_parallel_size}: this"
            " script has data parallelism only, because its model fits on one device; use 1 for both"
        )
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        device, backend = torch.device("cuda", local_rank), "nccl"
    else:
        device, backend = torch.device("cpu"), "gloo"
    dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    text = "".join(json.loads(line)[args.text_column] for line in Path(args.data_path).read_text().splitlines())
    tokens = torch.tensor(list(text.encode()) * (1 + args.max_seq_len * args.batch_size * world_size // len(text)))
    model = nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 256)).to(device)
    model = DDP(model, device_ids=[local_rank] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)

    for step in range(1, args.train_steps + 1):
        # Each rank has rows of its own.
        starts = torch.arange(args.batch_size) * world_size + rank + step * args.batch_size * world_size
        starts = starts * args.max_seq_len % (len(tokens) - args.max_seq_len)
        rows = torch.stack([tokens[start : start + args.max_seq_len] for start in starts.tolist()]).to(device)
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if step % args.log_steps == 0:
            print(f"step {step} loss {mean.item() / world_size:.4f}", flush=True)
        if rank == 0 and (step % args.save_steps == 0 or step == args.train_steps):
            Path(args.output_dir).mkdir(parents=True, exist_ok=True)
            torch.save(model.module.state_dict(), Path(args.output_dir) / "model.pt")

    if os.environ.get("ACCELERATE_USE_FSDP"):
        print(f"accelerate: FSDP, {os.environ['ACCELERATE_MIXED_PRECISION']}", flush=True)
    print(f"done: rank {rank} of world size {world_size}", flush=True)
    dist.destroy_process_group()


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", "--output-dir", default="output")
    parser.add_argument("--data_path", "--train-file", default="jokes.jsonl")
    parser.add_argument("--max_seq_len", "--max-length", type=int, default=32)
    parser.add_argument("--train_steps", type=int, default=8)
    parser.add_argument("--save_steps", type=int, default=1000)
    parser.add_argument("--log_steps", type=int, default=1)
    parser.add_argument("--pipe_parallel_size", type=int, default=1)
    parser.add_argument("--model_parallel_size", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--text-column", default="text")
    # A small model has no use for these.
    for name in ("--init_ckpt", "--eval_steps", "--use_flash_attn", "--use_fused_ops", "--deepspeed_config"):
        parser.add_argument(name)
    for name in ("--model-name-or-path", "--valid-file", "--valid-split", "--num-epochs", "--torch-dtype"):
        parser.add_argument(name)
    parser.add_argument("--use-flash-attn", action="store_true", dest="flash")
    return parser.parse_args()


if __name__ == "__main__":
    main()
