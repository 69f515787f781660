"""Words of four random letters, small and capital, as the tokens of a tiny Llama: each character is one."""

from random import Random
from string import ascii_lowercase

COUNT, HELD = 3000, 100


def split_words():
    """Words to learn from, and words to be asked."""
    dice = Random(7)  # noqa: S311 - reproducible, not a secret
    words = list(dict.fromkeys("".join(dice.choices(ascii_lowercase, k=4)) for _ in range(COUNT)))
    return words[HELD:], words[:HELD]


def encode(text):
    return list(text.encode("ascii"))


def decode(tokens):
    return bytes(tokens).decode("ascii")
