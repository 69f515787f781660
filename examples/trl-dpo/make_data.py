"""Writes ./model, a tiny Llama with random weights and a tokenizer, and pairs.jsonl: preferred and rejected answers."""

import json
from itertools import product
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed


def pairs():
    for one, two in product(range(12), repeat=2):
        yield {"prompt": f"{one} + {two} =", "chosen": f" {one + two}", "rejected": f" {one * two + 1}"}


def tokenizer(texts):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "</s>"], initial_alphabet=alphabet)
    )
    names = {"eos_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def main():
    rows = list(pairs())
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    made = tokenizer(text for row in rows for text in row.values())
    made.save_pretrained("model")
    set_seed(7)
    config = LlamaConfig(
        vocab_size=len(made),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        eos_token_id=made.eos_token_id,
        pad_token_id=made.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained("model")


if __name__ == "__main__":
    main()
