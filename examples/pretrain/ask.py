"""Lets ./trained continue the texts of held.jsonl, none of which is in train.jsonl, and counts the right sentences."""

import json
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

SHOWN = 3


def main():
    model, tokenizer = AutoModelForCausalLM.from_pretrained("trained"), AutoTokenizer.from_pretrained("trained")
    rows = [json.loads(line) for line in Path("held.jsonl").read_text("utf-8").splitlines()]
    texts = [row["begin"] for row in rows]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
    made = model.generate(**batch, max_new_tokens=16, do_sample=False)
    ends = tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    for text, end in zip(texts[:SHOWN], ends[:SHOWN], strict=True):
        print(f"{text} …{end}")
    right = sum(end == row["end"] for row, end in zip(rows, ends, strict=True))
    print(f"{right} of {len(rows)} right")


if __name__ == "__main__":
    main()
