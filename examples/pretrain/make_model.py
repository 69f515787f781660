"""Writes ./model: a config.json and a tokenizer, and no weights: training begins from scratch."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast


def tokenizer(texts):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<pad>", "<s>", "</s>"], initial_alphabet=alphabet)
    made.train_from_iterator(texts, trainer)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def main():
    rows = map(json.loads, Path("train.jsonl").read_text("utf-8").splitlines())
    made = tokenizer(row["text"] for row in rows)
    made.save_pretrained("model")
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(made),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=made.bos_token_id,
        eos_token_id=made.eos_token_id,
        pad_token_id=made.pad_token_id,
        tie_word_embeddings=True,
        initializer_range=0.05,  # so small a model learns faster with larger weights
    )
    config.save_pretrained("model")


if __name__ == "__main__":
    main()
