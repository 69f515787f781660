"""A stand-in for LMFlow's examples/finetune.py: its options, a tiny Llama of transformers, and real DeepSpeed."""

import argparse
import json
import math
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch.utils.data import TensorDataset
from transformers import AutoConfig, AutoModelForCausalLM


def main():
    args = parse_options()
    if not torch.cuda.is_available():
        # DeepSpeed would compile an all-reduce over shared memory first, on every node; Gloo has one.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    config = read_config(args)
    settings = AutoConfig.from_pretrained(args.model_name_or_path)
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = AutoModelForCausalLM.from_config(settings)
    if args.gradient_checkpointing == "True":
        model.gradient_checkpointing_enable()
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=read_rows(args), config=config
    )
    steps = math.ceil(args.num_train_epochs * len(loader))
    print(f"ZeRO stage {engine.zero_optimization_stage()}, rank {rank} of {world_size}, {steps} steps", flush=True)

    step = 0
    while step < steps:
        for (rows,) in loader:
            step += 1
            tokens = rows.to(engine.device)
            loss = engine(input_ids=tokens, labels=tokens.masked_fill(tokens == 0, -100), use_cache=False).loss
            engine.backward(loss)
            engine.step()
            mean = loss.detach().float()
            dist.all_reduce(mean)
            if rank == 0 and step % args.logging_steps == 0:
                print(f"step {step} loss {mean.item() / world_size:.4f}", flush=True)
    engine.save_16bit_model(args.output_dir, "pytorch_model.bin")
    if rank == 0:
        settings.save_pretrained(args.output_dir)
    print(f"done: rank {rank} of world size {world_size}", flush=True)
    dist.destroy_process_group()


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local_rank", type=int, help="set by the deepspeed launcher")
    for name in ("--model_name_or_path", "--dataset_path", "--output_dir", "--deepspeed"):
        parser.add_argument(name, required=True)
    for name in ("--num_train_epochs", "--learning_rate", "--weight_decay"):
        parser.add_argument(name, type=float, required=True)
    for name in ("--block_size", "--per_device_train_batch_size", "--gradient_accumulation_steps", "--logging_steps"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--gradient_checkpointing", default="False")
    # A tiny model has no use for these.
    for name in ("--run_name", "--validation_split_percentage", "--ddp_timeout", "--save_steps"):
        parser.add_argument(name)
    parser.add_argument("--dataloader_num_workers")
    for name in ("--overwrite_output_dir", "--do_train"):
        parser.add_argument(name, action="store_true")
    return parser.parse_args()


def read_config(args):
    """The DeepSpeed config with `auto` filled in from the options, as the Trainer of transformers does."""
    config = json.loads(Path(args.deepspeed).read_text())
    config["fp16"]["enabled"] = args.fp16 and bool(get_accelerator().is_fp16_supported())
    config["optimizer"]["params"] |= {"lr": args.learning_rate, "weight_decay": args.weight_decay}
    config["train_micro_batch_size_per_gpu"] = args.per_device_train_batch_size
    config["gradient_accumulation_steps"] = args.gradient_accumulation_steps
    return config


def read_rows(args):
    """The conversations as rows of bytes, cut or filled up to the block size."""
    rows = []
    for path in sorted(Path(args.dataset_path).glob("*.json")):
        for instance in json.loads(path.read_text())["instances"]:
            text = "\n".join(f"{message['role']}: {message['content']}" for message in instance["messages"])
            tokens = list(text.encode())[: args.block_size]
            rows.append(tokens + [0] * (args.block_size - len(tokens)))
    return TensorDataset(torch.tensor(rows))


if __name__ == "__main__":
    main()
