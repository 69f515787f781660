"""A stand-in for FMEngine's training script: its options, and DeepSpeed's pipeline engine, on a tiny model of bytes."""

import argparse
import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

VOCABULARY = 256


def main():
    args = parse_options()
    if not torch.cuda.is_available():
        # DeepSpeed would compile an all-reduce over shared memory first, on every node; Gloo has one.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    world_size = torch.distributed.get_world_size()
    if args.model_parallel_size > 1:
        sys.exit(f"--model_parallel_size {args.model_parallel_size}: this script has no tensor parallelism; use 1")
    if world_size % args.pipe_parallel_size:
        sys.exit(f"--pipe_parallel_size {args.pipe_parallel_size} does not divide the world size, {world_size}")

    torch.manual_seed(0)
    model = PipelineModule(
        layers=list_layers(Path(args.init_ckpt)),
        num_stages=args.pipe_parallel_size,
        loss_fn=compute_loss,
        partition_method="uniform",
    )
    rows = read_rows(Path(args.data_path), args.max_seq_len)
    engine, _, _, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=[p for p in model.parameters() if p.requires_grad], training_data=rows
    )
    print(f"pipeline stage {engine.stage_id} of {engine.num_stages}", flush=True)
    for step in range(1, args.train_steps + 1):
        loss = engine.train_batch()
        if step % args.log_steps == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % args.save_steps == 0 or step == args.train_steps:
            engine.save_checkpoint(args.output_dir)
    print(f"done: rank {engine.global_rank} of world size {world_size}", flush=True)
    torch.distributed.destroy_process_group()


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local_rank", type=int, default=int(os.environ["LOCAL_RANK"]))
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--init_ckpt", required=True, help="a directory with config.json")
    parser.add_argument("--data_path", required=True, help="jsonl with the key text")
    parser.add_argument("--max_seq_len", type=int, default=128)
    parser.add_argument("--train_steps", type=int, default=10)
    parser.add_argument("--save_steps", type=int, default=1000)
    parser.add_argument("--log_steps", type=int, default=1)
    parser.add_argument("--pipe_parallel_size", type=int, default=1)
    parser.add_argument("--model_parallel_size", type=int, default=1)
    # A small model has no use for these.
    for name in ("--eval_steps", "--use_flash_attn", "--use_fused_ops"):
        parser.add_argument(name)
    return deepspeed.add_config_arguments(parser).parse_args()


def list_layers(checkpoint):
    """The layers of the model that the checkpoint's config describes, with random weights."""
    config = json.loads((checkpoint / "config.json").read_text())
    width = config["hidden_size"]
    blocks = [LayerSpec(Block, width) for _ in range(config["num_hidden_layers"] - 2)]
    return [LayerSpec(nn.Embedding, VOCABULARY, width), *blocks, LayerSpec(nn.Linear, width, VOCABULARY)]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, hidden):
        return hidden + torch.relu(self.linear(self.norm(hidden)))


def compute_loss(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def read_rows(path, length):
    """Rows of bytes and the bytes that follow them; a short text is repeated."""
    text = "\n".join(json.loads(line)["text"] for line in path.read_text().splitlines()).encode()
    text *= 1 + 64 * (length + 1) // len(text)
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return [
        (tokens[at : at + length], tokens[at + 1 : at + length + 1]) for at in range(0, len(tokens) - length, length)
    ]


if __name__ == "__main__":
    main()
