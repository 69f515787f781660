"""Writes base.jsonl, opposites for the base model, and train.jsonl and held.jsonl, the adapter's style of answer."""

import json
from itertools import permutations
from pathlib import Path
from random import Random

OPPOSITES = (
    *(("hot", "cold"), ("big", "small"), ("old", "new"), ("fast", "slow"), ("wet", "dry"), ("loud", "quiet")),
    *(("high", "low"), ("hard", "soft"), ("dark", "light"), ("full", "empty"), ("near", "far"), ("early", "late")),
)
HELD = 64


def rows(style):
    opposite = dict(OPPOSITES) | {two: one for one, two in OPPOSITES}
    for one, two in permutations(opposite, 2):
        yield {"prompt": f"Opposites of {one} and {two}:", "completion": style.format(opposite[one], opposite[two])}


def shuffled_lines(style):
    lines = [json.dumps(row) + "\n" for row in rows(style)]
    Random(7).shuffle(lines)  # noqa: S311 - reproducible, not a secret
    return lines


def main():
    # The same order for both: neither the base model nor the adapter sees a question of held.jsonl.
    Path("base.jsonl").write_text("".join(shuffled_lines(" {} and {}")[HELD:]), "utf-8")
    lines = shuffled_lines(" very {}, very {}")
    Path("held.jsonl").write_text("".join(lines[:HELD]), "utf-8")
    Path("train.jsonl").write_text("".join(lines[HELD:]), "utf-8")


if __name__ == "__main__":
    main()
