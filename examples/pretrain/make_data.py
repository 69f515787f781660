"""Writes train.jsonl: short texts that a grammar makes, in the column `text`. Nothing is downloaded."""

import json
from pathlib import Path
from random import Random

WHO = ("the pilot", "a sailor", "the cook", "an old bird", "the mate", "our captain", "a fisher", "the child")
DOES = ("sees", "follows", "draws", "remembers", "hears", "greets", "names", "counts")
WHAT = ("the harbour", "a star", "seven boats", "the tide", "a grey whale", "the lamp", "an island", "the rope")
WHEN = ("at dawn", "in the fog", "before the storm", "every night", "on the last day", "without a word")
TEXTS = 600


def text(dice):
    sentences = []
    for _ in range(dice.randint(2, 6)):
        words = " ".join(map(dice.choice, (WHO, DOES, WHAT, WHEN)))
        sentences.append(f"{words[0].upper()}{words[1:]}.")
    return " ".join(sentences)


def main():
    dice = Random(7)  # noqa: S311 - reproducible, not a secret
    lines = [json.dumps({"text": text(dice)}) + "\n" for _ in range(TEXTS)]
    Path("train.jsonl").write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main()
