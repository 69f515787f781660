"""Asks ./trained the questions of held.jsonl, none of which is in train.jsonl, and counts the right answers."""

import json
from pathlib import Path

from make_model import ALPACA
from transformers import AutoModelForCausalLM, AutoTokenizer

SHOWN = 3


def main():
    model, tokenizer = AutoModelForCausalLM.from_pretrained("trained"), AutoTokenizer.from_pretrained("trained")
    rows = [json.loads(line) for line in Path("held.jsonl").read_text("utf-8").splitlines()]
    prompts = [ALPACA.format(**row | {"output": ""}) for row in rows]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
    made = model.generate(**batch, max_new_tokens=16, do_sample=False)
    answers = tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    for row, answer in zip(rows[:SHOWN], answers[:SHOWN], strict=True):
        print(f"{row['instruction']} {row['input']}: {answer}")
    right = sum(answer == row["output"] for row, answer in zip(rows, answers, strict=True))
    print(f"{right} of {len(rows)} right")


if __name__ == "__main__":
    main()
