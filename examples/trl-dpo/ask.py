"""Asks ./model and ./trained the questions of held.jsonl, which neither has seen, and looks at the style."""

import json
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

SHOWN = 3


def ask(folder, prompts):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
    made = model.generate(**batch, max_new_tokens=16, do_sample=False)
    return tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def main():
    rows = [json.loads(line) for line in Path("held.jsonl").read_text("utf-8").splitlines()]
    for folder in ("model", "trained"):
        answers = ask(folder, [row["prompt"] for row in rows])
        for row, answer in zip(rows[:SHOWN], answers[:SHOWN], strict=True):
            print(f"{folder}: {row['prompt']}{answer}")
        right = sum(answer == row["chosen"] for row, answer in zip(rows, answers, strict=True))
        print(f"{folder}: {right} of {len(rows)} in the chosen style")


if __name__ == "__main__":
    main()
