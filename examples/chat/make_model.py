"""Writes ./model: a tiny Qwen with random weights, and a tokenizer with a chat template, trained on train.jsonl."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(texts):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
    made.train_from_iterator(texts, trainer)
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=TEMPLATE, **names)


def main():
    rows = map(json.loads, Path("train.jsonl").read_text("utf-8").splitlines())
    made = tokenizer(turn["content"] for row in rows for turn in row["messages"])
    made.save_pretrained("model")
    set_seed(7)
    config = Qwen3Config(
        vocab_size=len(made),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        eos_token_id=made.eos_token_id,
        pad_token_id=made.pad_token_id,
        tie_word_embeddings=False,
        initializer_range=0.05,  # so small a model learns faster with larger weights
    )
    Qwen3ForCausalLM(config).save_pretrained("model")


if __name__ == "__main__":
    main()
