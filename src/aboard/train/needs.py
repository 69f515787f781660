"""`python -m aboard.train.needs`: what a rank will need, and whether it can pack, told before there are ranks."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from aboard.core.training import Training
from aboard.train.answer import answered
from aboard.train.auto import best
from aboard.train.needs_advice import advice
from aboard.train.needs_estimate import model


def tell(asked: Mapping[str, Any]) -> dict[str, Any]:
    """To {"training": …, "ranks": {node: how many}, "memory": the least bytes that any rank has, or null}.

    `enough` is None where the memory isn't known; `fits` has what to type so that it fits. `why_not_apart` says what
    keeps documents of one sequence from being kept apart in this model, if anything does.
    """
    training, nodes = Training.of(asked["training"]), tuple(asked["ranks"].values())
    room: int | None = asked.get("memory")
    its = model(training)
    found = best(its, training, nodes, room=room)
    enough = None if room is None else found.fits(room)
    return {
        "states": found.states,
        "total": found.total,
        "says": found.details(nodes),
        "words": found.words(nodes, room),
        "sharding": found.sharding,
        "enough": enough,
        "fits": [] if enough else list(advice(its, training, nodes, room=room)),
        "needs": asdict(found),
        "why_not_apart": its.why_not_apart,
    }


if __name__ == "__main__":
    sys.exit(answered(lambda: tell(json.load(sys.stdin))))
