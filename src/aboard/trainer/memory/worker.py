"""`python -m aboard.trainer.memory.worker`: estimates memory and packing support before any rank starts."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from aboard.core.plan.training_settings import Training
from aboard.trainer.distributed.auto_sharding import find_best_layout
from aboard.trainer.memory.advice import suggest_changes
from aboard.trainer.memory.estimate import profile_model
from aboard.trainer.worker_protocol import write_reply


def answer_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answers {"training": …, "ranks": {node: count}, "memory": the least bytes that any rank has, or null, "gpus": …}.

    `enough` is None if the memory is unknown; `fits` has the options that make it fit. `why_not_apart` says why
    documents of one sequence can't be separated in this model, `why_not_chunked` why `chunked_loss` can't be used with
    it; None if they can.
    """
    training, nodes = Training.of(request["training"]), tuple(request["ranks"].values())
    room: int | None = request.get("memory")
    gpus: bool = request.get("gpus", False)
    profile = profile_model(training)
    estimate = find_best_layout(profile, training, nodes, room=room)
    enough = None if room is None else estimate.fits(room)
    return {
        "states": estimate.states,
        "total": estimate.total,
        "says": estimate.details(nodes),
        "words": estimate.words(nodes, room),
        "sharding": estimate.sharding,
        "enough": enough,
        "fits": [] if enough else list(suggest_changes(profile, training, nodes, room=room, gpus=gpus)),
        "needs": asdict(estimate),
        "why_not_apart": profile.why_not_apart,
        "why_not_chunked": profile.why_not_chunked if training.chunked_loss else None,
    }


if __name__ == "__main__":
    sys.exit(write_reply(lambda: answer_request(json.load(sys.stdin))))
