"""The Trainer of transformers on a tiny Llama with random weights and random tokens."""

import torch
from datasets import Dataset
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


def main():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    set_seed(args.seed)

    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    tokens = torch.randint(config.vocab_size, (256, 16)).tolist()
    dataset = Dataset.from_dict({"input_ids": tokens, "labels": tokens}).with_format("torch")

    trainer = Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=dataset)
    result = trainer.train()
    print(f"train loss {result.training_loss:.4f}", flush=True)
    print(f"done: rank {args.process_index} of world size {args.world_size}", flush=True)


if __name__ == "__main__":
    main()
