"""Asks ./trained for the capitals of words that it has not seen in training, and counts the right answers."""

import torch
from transformers import AutoModelForCausalLM
from words import decode, encode, split_words

SHOWN = 3


def main():
    model = AutoModelForCausalLM.from_pretrained("trained")
    _, held = split_words()
    prompts = torch.tensor([encode(f"{word}=") for word in held])
    made = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=4, do_sample=False)
    answers = [decode(tokens) for tokens in made.tolist()]
    print("\n".join(answers[:SHOWN]))
    right = sum(answer == f"{word}={word.upper()}" for word, answer in zip(held, answers, strict=True))
    print(f"{right} of {len(held)} right")


if __name__ == "__main__":
    main()
