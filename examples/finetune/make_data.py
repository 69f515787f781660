"""Writes train.jsonl and held.jsonl: sums and words to spell, as alpaca rows. No downloads."""

import json
from itertools import permutations
from pathlib import Path
from random import Random

WORDS = (
    "train",
    "node",
    "wire",
    "rank",
    "loss",
    "mesh",
    "shard",
    "step",
    "seed",
    "plan",
    "deck",
    "sail",
    "port",
    "crew",
)
HELD = 64


def rows():
    for one in range(25):
        for two in range(25):
            yield {"instruction": "Add the numbers.", "input": f"{one} and {two}", "output": f"{one + two}"}
    for words in permutations(WORDS, 2):
        spelled = " ".join("-".join(word) for word in words)
        yield {"instruction": "Spell the words.", "input": " ".join(words), "output": spelled}


def main():
    lines = [json.dumps(row) + "\n" for row in rows()]
    Random(7).shuffle(lines)  # noqa: S311 - reproducible, not a secret
    Path("held.jsonl").write_text("".join(lines[:HELD]), "utf-8")
    Path("train.jsonl").write_text("".join(lines[HELD:]), "utf-8")


if __name__ == "__main__":
    main()
