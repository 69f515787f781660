"""Writes train.jsonl and held.jsonl: conversations of two questions and two answers. No downloads."""

import json
from itertools import product
from pathlib import Path
from random import Random

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gwen", "Hugo")
PLACES = ("Oslo", "Lima", "Kyoto", "Accra", "Quito", "Turin", "Perth", "Varna")
THINGS = ("a map", "a lamp", "a drum", "a kite", "a rope", "a book")
HELD = 32


def conversations():
    for name, place, thing in product(NAMES, PLACES, THINGS):
        yield [
            {"role": "system", "content": f"{name} is in {place} and has {thing}."},
            {"role": "user", "content": f"Where is {name}?"},
            {"role": "assistant", "content": f"{name} is in {place}."},
            {"role": "user", "content": "And what is there to carry?"},
            {"role": "assistant", "content": f"Only {thing}."},
        ]


def main():
    lines = [json.dumps({"messages": turns}) + "\n" for turns in conversations()]
    Random(7).shuffle(lines)  # noqa: S311 - reproducible, not a secret
    Path("held.jsonl").write_text("".join(lines[:HELD]), "utf-8")
    Path("train.jsonl").write_text("".join(lines[HELD:]), "utf-8")


if __name__ == "__main__":
    main()
