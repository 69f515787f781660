"""What the ask.py of an example says about the model's answers."""

import re

# Of questions that the model has not seen in training.
ENOUGH = 0.9


def check_answers(said: str) -> None:
    """The last score in an output, such as `63 of 64 right`, is high enough."""
    scores = re.findall(r"(\d+) of (\d+) (?:right|in the (?:new|chosen) style)$", said, re.MULTILINE)
    assert scores, said
    right, asked = map(int, scores[-1])
    assert right >= ENOUGH * asked, said
