"""Writes train.jsonl, short texts that a grammar makes, and held.jsonl, texts that are not in it, cut in two."""

import json
from itertools import permutations, product
from pathlib import Path
from random import Random

WHO = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gwen", "Hugo")
WHAT = ("a map", "a lamp", "a drum", "a kite", "a rope", "a book")
HELD = 64


def texts():
    for (giver, taker), what in product(permutations(WHO, 2), WHAT):
        yield f"{giver} gives {taker} {what}.", f" {taker} has {what}."


def main():
    made = list(texts())
    Random(7).shuffle(made)  # noqa: S311 - reproducible, not a secret
    held = [{"begin": begin, "end": end} for begin, end in made[:HELD]]
    train = [{"text": begin + end} for begin, end in made[HELD:]]
    for name, rows in (("held", held), ("train", train)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


if __name__ == "__main__":
    main()
