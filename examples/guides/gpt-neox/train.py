"""A stand-in for gpt-neox's train.py: the options that deepy.py passes, and real DeepSpeed, on a model of bytes."""

import argparse
import base64
import json
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import nn
from torch.nn import functional


def main():
    config, settings = parse_options()
    if not torch.cuda.is_available():
        # DeepSpeed would compile an all-reduce over shared memory first, on every node; Gloo has one.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    config["fp16"]["enabled"] &= bool(get_accelerator().is_fp16_supported())
    deepspeed.init_distributed()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = LanguageModel(settings["hidden_size"], settings["num_layers"], settings["num_attention_heads"])
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    print(f"ZeRO stage {engine.zero_optimization_stage()}, batch {engine.train_batch_size()}", flush=True)
    text = torch.tensor(list(Path(settings["data_path"] + ".bin").read_bytes()))
    length = settings["seq_length"] + 1

    for step in range(1, settings["train_iters"] + 1):
        # Each rank has rows of its own.
        choice = torch.Generator().manual_seed(step * world_size + rank)
        starts = torch.randint(len(text) - length, (config["train_micro_batch_size_per_gpu"],), generator=choice)
        rows = torch.stack([text[start : start + length] for start in starts.tolist()]).to(engine.device)
        loss = functional.cross_entropy(engine(rows[:, :-1]).flatten(0, 1).float(), rows[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0 and step % settings["log_interval"] == 0:
            print(f"step {step} loss {mean.item() / world_size:.4f}", flush=True)
    engine.save_checkpoint(settings["save"], tag=f"global_step{settings['train_iters']}")
    print(f"done: rank {rank} of world size {world_size}", flush=True)
    dist.destroy_process_group()


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local_rank", type=int, help="set by the deepspeed launcher")
    parser.add_argument("--deepspeed_config", type=decode, required=True)
    parser.add_argument("--megatron_config", type=decode, required=True)
    args = parser.parse_args()
    return args.deepspeed_config, args.megatron_config


def decode(text):
    return json.loads(base64.urlsafe_b64decode(text))


class LanguageModel(nn.Module):
    def __init__(self, size, layers, heads):
        super().__init__()
        self.embedding = nn.Embedding(256, size)
        layer = nn.TransformerEncoderLayer(size, heads, 2 * size, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(size, 256)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device, hidden.dtype)
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


if __name__ == "__main__":
    main()
