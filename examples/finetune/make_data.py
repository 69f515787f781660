"""Writes train.jsonl and held.jsonl: pairs of words and their opposites, as alpaca rows. No downloads."""

import json
from itertools import permutations
from pathlib import Path
from random import Random

OPPOSITES = (
    *(("hot", "cold"), ("big", "small"), ("old", "new"), ("fast", "slow"), ("wet", "dry"), ("loud", "quiet")),
    *(("high", "low"), ("hard", "soft"), ("dark", "light"), ("full", "empty"), ("near", "far"), ("early", "late")),
)
HELD = 64


def rows():
    opposite = dict(OPPOSITES) | {two: one for one, two in OPPOSITES}
    for one, two in permutations(opposite, 2):
        answer = f"{opposite[one]} and {opposite[two]}"
        yield {"instruction": "Name the opposites.", "input": f"{one} and {two}", "output": answer}


def main():
    lines = [json.dumps(row) + "\n" for row in rows()]
    Random(7).shuffle(lines)  # noqa: S311 - reproducible, not a secret
    Path("held.jsonl").write_text("".join(lines[:HELD]), "utf-8")
    Path("train.jsonl").write_text("".join(lines[HELD:]), "utf-8")


if __name__ == "__main__":
    main()
