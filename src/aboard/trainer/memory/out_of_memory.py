"""A rank that runs out of GPU memory: what would need less, with figures."""

from dataclasses import replace
from itertools import islice
from os import environ

import torch

from aboard.core.plan.training_settings import Training
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import AboardError, TrainerError
from aboard.diagnoses.untrusted import escape_text
from aboard.trainer.diagnoses.training import MEMORY, MOST_CHANGES
from aboard.trainer.distributed.auto_sharding import find_best_layout
from aboard.trainer.distributed.rank_context import RankContext
from aboard.trainer.memory.advice import list_changes
from aboard.trainer.memory.estimate import estimate_memory, profile_model


def explain_out_of_memory(error: torch.OutOfMemoryError, training: Training, context: RankContext) -> AboardError:
    """The error with torch's figures and the estimate, and with the changes that the estimate says need less."""
    local = int(environ.get("LOCAL_WORLD_SIZE", "1"))
    nodes = (local,) * (context.size // local) or (1,)
    # What `auto` has chosen.
    chosen = replace(training, sharding=context.sharding)
    profile = profile_model(chosen)
    needed = estimate_memory(
        profile, chosen, nodes, sharding=context.sharding, keep=context.keep, hold=context.hold
    ).total
    values: dict[str, str | list[str]] = {}
    changes = (
        (change.typed.replace("--set ", "").split(), least)
        for change in list_changes(chosen, gpus=True, chunks=profile.why_not_chunked is None)
        if (least := find_best_layout(profile, change.training, nodes, room=None).total) < needed
    )
    count = 0
    for count, (settings, least) in enumerate(islice(changes, MOST_CHANGES), 1):
        amount, _, unit = format_size(least).partition(" ")
        values |= {f"to{count}": settings, f"amount{count}": amount, f"unit{count}": unit}
    # Such as "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which …".
    said = escape_text(str(error).partition(" Including non-PyTorch")[0].partition("\n")[0], 300)
    seen = f"rank {context.rank}: {said}; the estimate was {format_size(needed)}"
    return TrainerError(MEMORY, seen, fix=MEMORY.fix(f"less-{count}" if count else "twice", **values))
