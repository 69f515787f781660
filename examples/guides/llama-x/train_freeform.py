"""A stand-in for Llama-X's train_freeform.py: its options and real DeepSpeed, on a language model of bytes."""

import argparse
import json
import math
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset


def main():
    args = parse_options()
    if not torch.cuda.is_available():
        # DeepSpeed would compile an all-reduce over shared memory first, on every node; Gloo has one.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    config = read_config(args)
    settings = json.loads((Path(args.model_name_or_path) / "config.json").read_text())
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = LanguageModel(**settings)
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=read_rows(args), config=config
    )
    steps = math.ceil(args.num_train_epochs * len(loader))
    half = engine.fp16_enabled()
    print(f"ZeRO stage {engine.zero_optimization_stage()}, {'fp16' if half else 'float32'}, {steps} steps", flush=True)

    step = 0
    while step < steps:
        for (rows,) in loader:
            step += 1
            set_rate(engine, args, step, steps)
            tokens = rows.to(engine.device)
            logits = engine(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), ignore_index=0)
            engine.backward(loss)
            engine.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if dist.get_rank() == 0 and step % args.logging_steps == 0:
                print(f"step {step} loss {mean.item() / dist.get_world_size():.4f}", flush=True)
            if step % args.save_steps == 0:
                engine.save_checkpoint(args.output_dir, tag=f"checkpoint-{step}")
    engine.save_16bit_model(args.output_dir, "pytorch_model.bin")
    print(f"done: rank {dist.get_rank()} of world size {dist.get_world_size()}", flush=True)
    dist.destroy_process_group()


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local_rank", type=int, help="set by the deepspeed launcher")
    for name in ("--model_name_or_path", "--data_path", "--output_dir", "--deepspeed"):
        parser.add_argument(name, required=True)
    parser.add_argument("--num_train_epochs", type=float, default=3)
    for name in ("--model_max_length", "--per_device_train_batch_size", "--gradient_accumulation_steps"):
        parser.add_argument(name, type=int, default=1)
    for name in ("--save_steps", "--warmup_steps", "--logging_steps"):
        parser.add_argument(name, type=int, default=1)
    parser.add_argument("--learning_rate", type=float, default=2e-5)
    parser.add_argument("--fp16", default="False")
    # A tiny model has no use for these.
    for name in ("--per_device_eval_batch_size", "--evaluation_strategy", "--save_strategy", "--save_total_limit"):
        parser.add_argument(name)
    for name in ("--lr_scheduler_type", "--report_to", "--gradient_checkpointing"):
        parser.add_argument(name)
    return parser.parse_args()


def read_config(args):
    """The DeepSpeed config with `auto` filled in from the options, as the Trainer of transformers does."""
    config = json.loads(Path(args.deepspeed).read_text())
    config["fp16"]["enabled"] = args.fp16 == "True" and bool(get_accelerator().is_fp16_supported())
    config["optimizer"]["params"]["lr"] = args.learning_rate
    config["train_micro_batch_size_per_gpu"] = args.per_device_train_batch_size
    config["gradient_accumulation_steps"] = args.gradient_accumulation_steps
    return config


def read_rows(args):
    rows = []
    for row in json.loads(Path(args.data_path).read_text()):
        text = f"### Instruction:\n{row['instruction']}\n\n### Response:{row['output']}\n"
        tokens = list(text.encode())[: args.model_max_length]
        rows.append(tokens + [0] * (args.model_max_length - len(tokens)))
    return TensorDataset(torch.tensor(rows))


def set_rate(engine, args, step, steps):
    """Warmup, then a cosine."""
    share = (
        min(1, step / args.warmup_steps) if step <= args.warmup_steps else 0.5 + 0.5 * math.cos(math.pi * step / steps)
    )
    for group in engine.optimizer.param_groups:
        group["lr"] = args.learning_rate * share


class LanguageModel(nn.Module):
    def __init__(self, vocab_size, hidden_size, num_hidden_layers, num_attention_heads):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(Layer(hidden_size, num_attention_heads) for _ in range(num_hidden_layers))
        self.head = nn.Linear(hidden_size, vocab_size)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


class Layer(nn.Module):
    def __init__(self, hidden_size, heads):
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(hidden_size)
        self.projections = nn.Linear(hidden_size, 3 * hidden_size)
        self.mixed = nn.Linear(hidden_size, hidden_size)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(hidden_size),
            nn.Linear(hidden_size, 2 * hidden_size),
            nn.GELU(),
            nn.Linear(2 * hidden_size, hidden_size),
        )

    def forward(self, hidden):
        rows, length, size = hidden.shape
        split = self.projections(self.before(hidden)).view(rows, length, 3, self.heads, size // self.heads)
        attended = functional.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4), is_causal=True)
        hidden = hidden + self.mixed(attended.transpose(1, 2).reshape(rows, length, size))
        return hidden + self.feed_forward(hidden)


if __name__ == "__main__":
    main()
