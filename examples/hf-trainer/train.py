"""The Trainer of transformers: a tiny Llama with random weights learns to write words in capitals."""

from datasets import Dataset
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed
from words import encode, split_words


def main():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    set_seed(args.seed)

    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    known, _ = split_words()
    tokens = [encode(f"{word}={word.upper()}") for word in known]
    dataset = Dataset.from_dict({"input_ids": tokens, "labels": tokens}).with_format("torch")

    trainer = Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=dataset)
    result = trainer.train()
    trainer.save_model("trained")
    print(f"train loss {result.training_loss:.4f}", flush=True)
    print(f"done: rank {args.process_index} of world size {args.world_size}", flush=True)


if __name__ == "__main__":
    main()
