"""Writes base.jsonl, answers in two styles for the base model, and pairs.jsonl and held.jsonl: one is preferred."""

import json
from itertools import permutations
from pathlib import Path
from random import Random

OPPOSITES = (
    *(("hot", "cold"), ("big", "small"), ("old", "new"), ("fast", "slow"), ("wet", "dry"), ("loud", "quiet")),
    *(("high", "low"), ("hard", "soft"), ("dark", "light"), ("full", "empty"), ("near", "far"), ("early", "late")),
)
CHOSEN, REJECTED = " very {}, very {}", " {} and {}"
HELD = 64


def pairs():
    opposite = dict(OPPOSITES) | {two: one for one, two in OPPOSITES}
    for one, two in permutations(opposite, 2):
        chosen, rejected = (style.format(opposite[one], opposite[two]) for style in (CHOSEN, REJECTED))
        yield {"prompt": f"Opposites of {one} and {two}:", "chosen": chosen, "rejected": rejected}


def main():
    dice = Random(7)  # noqa: S311 - reproducible, not a secret
    made = list(pairs())
    dice.shuffle(made)
    held, known = made[:HELD], made[HELD:]
    base = [{"prompt": row["prompt"], "completion": row[style]} for row in known for style in ("chosen", "rejected")]
    dice.shuffle(base)
    for name, rows in (("base", base), ("pairs", known), ("held", held)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


if __name__ == "__main__":
    main()
