"""Letters of 5 × 5 pixels, two of which are wrong, and a model that reads them."""

from itertools import combinations
from random import Random

import torch
from torch import nn

LETTERS = {
    "H": ("#...#", "#...#", "#####", "#...#", "#...#"),
    "L": ("#....", "#....", "#....", "#....", "#####"),
    "O": ("#####", "#...#", "#...#", "#...#", "#####"),
    "T": ("#####", "..#..", "..#..", "..#..", "..#.."),
    "X": ("#...#", ".#.#.", "..#..", ".#.#.", "#...#"),
    "Z": ("#####", "...#.", "..#..", ".#...", "#####"),
}
HELD = 100


def split_pictures():
    """Pictures to learn from, and pictures to be asked, each with the places of their letters in LETTERS."""
    made = []
    for place, rows in enumerate(LETTERS.values()):
        for wrong in combinations(range(25), 2):
            pixels = [pixel == "#" for pixel in "".join(rows)]
            made.append(([float(on ^ (at in wrong)) for at, on in enumerate(pixels)], place))
    Random(7).shuffle(made)  # noqa: S311 - reproducible, not a secret
    return _stack(made[HELD:]), _stack(made[:HELD])


def build_model():
    return nn.Sequential(nn.Linear(25, 32), nn.ReLU(), nn.Linear(32, len(LETTERS)))


def _stack(made):
    pictures, places = zip(*made, strict=True)
    return torch.tensor(pictures), torch.tensor(places)
