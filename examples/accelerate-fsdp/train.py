"""Accelerate with an FSDP config: a tiny Llama with random weights learns a cipher."""

import argparse

import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils import parse_flag_from_env, set_seed
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM
from words import encipher, encode, split_words


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    if accelerator.distributed_type == DistributedType.MULTI_CPU and parse_flag_from_env("ACCELERATE_USE_FSDP"):
        shard_on_cpu(accelerator)
    set_seed(0)

    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.1,  # so small a model learns faster with larger weights
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    known, _ = split_words()
    tokens = torch.tensor([encode(f"{word}={encipher(word)}") for word in known])
    drawn = torch.randint(len(tokens), (args.steps * args.batch_size * accelerator.num_processes,))
    loader = DataLoader(tokens[drawn], batch_size=args.batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for step, batch in enumerate(loader):
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 10 == 0:
            # The mean over all ranks; each rank has seen other samples.
            mean = accelerator.reduce(loss.detach(), reduction="mean")
            print(f"step {step + 1} loss {mean.item():.4f}", flush=True)

    layer, weight = model.model.layers[0], model.lm_head.weight
    print(f"{type(layer).__name__}; of the head {weight.to_local().numel()} of {weight.numel()}", flush=True)
    weights = {name: each.full_tensor() for name, each in model.state_dict().items()}
    if accelerator.is_main_process:
        LlamaForCausalLM(config).save_pretrained("trained", state_dict=weights)
    print(f"done: rank {accelerator.process_index} of world size {accelerator.num_processes}", flush=True)
    accelerator.end_training()


def shard_on_cpu(accelerator):
    """Use the FSDP config on CPUs too, so that this example runs without a GPU.

    accelerate 1.15 uses FSDP on accelerators only (AcceleratorState in accelerate/state.py); on CPUs it would use
    DistributedDataParallel, whatever the config says. The plugin reads the config as it does on GPUs.
    """
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin()


if __name__ == "__main__":
    main()
