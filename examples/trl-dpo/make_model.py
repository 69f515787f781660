"""Writes ./model: a tiny Llama that has learned both styles from base.jsonl in seconds, and its tokenizer."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

STEPS, ROWS = 120, 16


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
    rows = list(map(json.loads, Path("base.jsonl").read_text("utf-8").splitlines()))
    made = tokenizer(row["prompt"] + row["completion"] for row in rows)
    made.save_pretrained("model")
    set_seed(7)
    config = LlamaConfig(
        vocab_size=len(made),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        bos_token_id=made.bos_token_id,
        eos_token_id=made.eos_token_id,
        pad_token_id=made.pad_token_id,
        initializer_range=0.05,  # so small a model learns faster with larger weights
    )
    model = LlamaForCausalLM(config)
    texts = [row["prompt"] + row["completion"] + made.eos_token for row in rows]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        chosen = [texts[(step * ROWS + at) % len(texts)] for at in range(ROWS)]
        batch = made(chosen, return_tensors="pt", padding=True, return_token_type_ids=False)
        loss = model(**batch, labels=batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"the base model's last loss: {loss.item():.2f}")
    model.save_pretrained("model")


if __name__ == "__main__":
    main()
