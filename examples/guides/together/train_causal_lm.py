"""A stand-in for the guide's training script: its options, and Accelerate with FSDP, on a tiny Llama of bytes."""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils import parse_flag_from_env, set_seed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    args = parse_options()
    if not Path(args.model_name_or_path).is_dir() and "HUGGING_FACE_HUB_TOKEN" not in os.environ:
        # As transformers 4.31, the guide's version.
        sys.exit(f"GatedRepoError: 401 Client Error. Cannot access gated repo for url {args.model_name_or_path}")
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    if accelerator.distributed_type == DistributedType.MULTI_CPU and parse_flag_from_env("ACCELERATE_USE_FSDP"):
        shard_on_cpu(accelerator)
    set_seed(0)

    rows = read_rows(Path(args.train_file), args.text_column, args.max_length)
    held_out = max(1, len(rows) * args.valid_split // 100)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    model, optimizer, train, valid = accelerator.prepare(
        model,
        optimizer,
        DataLoader(rows[held_out:], batch_size=args.batch_size, shuffle=True),
        DataLoader(rows[:held_out], batch_size=args.batch_size),
    )
    print(f"{type(model.model.layers[0]).__name__} in {accelerator.mixed_precision}", flush=True)
    step = 0
    for epoch in range(1, args.num_epochs + 1):
        model.train()
        for batch in train:
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            print(f"step {step} loss {compute_mean(accelerator, loss):.4f}", flush=True)
        model.eval()
        with torch.no_grad():
            losses = [compute_mean(accelerator, model(input_ids=batch, labels=batch).loss) for batch in valid]
        print(f"epoch {epoch} validation loss {sum(losses) / len(losses):.4f}", flush=True)

    # Every rank takes part: each has a shard of the weights.
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if accelerator.is_main_process:
        model.save_pretrained(args.output_dir, state_dict=weights)
    print(f"done: rank {accelerator.process_index} of world size {accelerator.num_processes}", flush=True)
    accelerator.end_training()


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-name-or-path", default="meta-llama/Llama-2-7b-hf")
    parser.add_argument("--train-file", required=True)
    parser.add_argument("--valid-file", help="not used: a split of the training file is")
    parser.add_argument("--valid-split", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--num-epochs", type=int, default=2)
    parser.add_argument("--use-flash-attn", action="store_true", help="not used: the model is small")
    parser.add_argument("--torch-dtype", choices=("bf16", "fp16", "fp32"), help="not used: the launcher's is")
    parser.add_argument("--output-dir", default="output")
    return parser.parse_args()


def read_rows(path, column, length):
    """Rows of bytes; a short text is repeated, so that every rank has some."""
    text = "\n".join(json.loads(line)[column] for line in path.read_text().splitlines()).encode()
    text *= 1 + 64 * length // len(text)
    return torch.frombuffer(bytearray(text[: 64 * length]), dtype=torch.uint8).long().view(64, length)


def compute_mean(accelerator, loss):
    return accelerator.reduce(loss.detach().float(), reduction="mean").item()


def shard_on_cpu(accelerator):
    """Use the FSDP config on CPUs too, where accelerate 1.15 would use DistributedDataParallel whatever it says."""
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin()


if __name__ == "__main__":
    main()
