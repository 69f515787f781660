"""Asks ./trained both questions of each conversation of held.jsonl, none of which is in train.jsonl."""

import json
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

SHOWN = 2


def main():
    model, tokenizer = AutoModelForCausalLM.from_pretrained("trained"), AutoTokenizer.from_pretrained("trained")
    talks = [json.loads(line)["messages"] for line in Path("held.jsonl").read_text("utf-8").splitlines()]
    asked = [talk[:end] for talk in talks for end in (2, 4)]
    wanted = [talk[end]["content"] for talk in talks for end in (2, 4)]
    prompts = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
    made = model.generate(**batch, max_new_tokens=16, do_sample=False)
    answers = tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    for turns, answer in list(zip(asked, answers, strict=True))[: 2 * SHOWN]:
        print(f"{turns[0]['content']} {turns[-1]['content']} {answer}")
    right = sum(answer == want for answer, want in zip(answers, wanted, strict=True))
    print(f"{right} of {len(wanted)} right")


if __name__ == "__main__":
    main()
