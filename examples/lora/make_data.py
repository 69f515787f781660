"""Writes base.jsonl, words to spell for the base model, and train.jsonl and held.jsonl, sums for the adapter."""

import json
from itertools import permutations, product
from pathlib import Path
from random import Random

WORDS = ("train", "node", "wire", "rank", "loss", "mesh", "shard", "step", "seed", "plan", "deck", "sail", "port")
HELD = 64


def spelling():
    for words in permutations(WORDS, 2):
        yield {"prompt": f"Spell {' '.join(words)}: ", "completion": " ".join("-".join(word) for word in words)}


def sums():
    for one, two in product(range(25), repeat=2):
        yield {"prompt": f"Add {one} and {two}: ", "completion": f"{one + two}"}


def shuffled_lines(rows):
    lines = [json.dumps(row) + "\n" for row in rows]
    Random(7).shuffle(lines)  # noqa: S311 - reproducible, not a secret
    return lines


def main():
    Path("base.jsonl").write_text("".join(shuffled_lines(spelling())), "utf-8")
    lines = shuffled_lines(sums())
    Path("held.jsonl").write_text("".join(lines[:HELD]), "utf-8")
    Path("train.jsonl").write_text("".join(lines[HELD:]), "utf-8")


if __name__ == "__main__":
    main()
