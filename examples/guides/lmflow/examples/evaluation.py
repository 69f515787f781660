"""A stand-in for LMFlow's examples/evaluation.py: the mean loss of a trained model on rows that it has not seen."""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

BLOCK_SIZE = 64


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local_rank", type=int, help="set by the deepspeed launcher")
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--dataset_path", required=True)
    parser.add_argument("--metric", choices=["nll"], default="nll")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path).float()
    losses = []
    for path in sorted(Path(args.dataset_path).glob("*.json")):
        for instance in json.loads(path.read_text())["instances"]:
            text = "\n".join(f"{message['role']}: {message['content']}" for message in instance["messages"])
            tokens = torch.tensor([list(text.encode())[:BLOCK_SIZE]])
            with torch.no_grad():
                losses.append(model(input_ids=tokens, labels=tokens).loss.item())
    print(f"nll {sum(losses) / len(losses):.4f} on {len(losses)} conversations", flush=True)


if __name__ == "__main__":
    main()
