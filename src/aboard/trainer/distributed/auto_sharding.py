"""`sharding: auto`: chooses the fastest layout that fits and leaves some memory free."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from aboard.core.plan.training_settings import Training
from aboard.trainer.distributed.device_mesh import ShardingKind, require_even_ranks
from aboard.trainer.memory.estimate import MemoryEstimate, ModelProfile, estimate_memory, profile_model


def choose_sharding(training: Training, nodes: tuple[int, ...], *, room: int) -> tuple[ShardingKind, bool, bool]:
    """The sharding, and whether memory suffices to keep gathered weights and to hold full gradients.

    Every rank gets the same result from the same input; `room` is the smallest memory of any rank.
    """
    if list_shardings(training, nodes) == ("none",):
        return "none", False, False
    estimate = find_best_layout(profile_model(training), training, nodes, room=room)
    return estimate.sharding, estimate.keep, estimate.hold


def list_shardings(training: Training, nodes: tuple[int, ...]) -> tuple[ShardingKind, ...]:
    """The candidates, fastest first: on one node hybrid equals full, and over nodes of one rank it equals none.

    Only shards can be offloaded; one rank then has the only shard.
    """
    if training.cpu_offload:
        training = replace(training, cpu_offload=False)
        shardings = tuple(each for each in list_shardings(training, nodes) if each != "none")
        return shardings or ("full",)
    if sum(nodes) == 1 or training.load_in_4bit:
        return ("none",)
    uneven = len(set(nodes)) > 1
    if training.sharding == "auto":
        return ("none", "full") if uneven or len(nodes) == 1 or nodes[0] == 1 else ("none", "hybrid", "full")
    if training.sharding == "hybrid":
        return ("none",) if require_even_ranks(nodes) == 1 else ("full",) if len(nodes) == 1 else ("hybrid",)
    return (training.sharding,)


def find_best_layout(
    profile: ModelProfile, training: Training, nodes: tuple[int, ...], *, room: int | None
) -> MemoryEstimate:
    """The first layout that leaves room; if none does, or `room` is unknown, the one with the smallest estimate."""
    estimates = list(_estimate_layouts(profile, training, nodes))
    roomy = (each for each in estimates if room is not None and each.fits_with_room(room))
    return next(roomy, None) or min(estimates, key=lambda each: each.total)


def _estimate_layouts(profile: ModelProfile, training: Training, nodes: tuple[int, ...]) -> Iterator[MemoryEstimate]:
    for sharding in list_shardings(training, nodes):
        # Kept weights save an all-gather per backward; held gradients save a reduction in all micro-batches but the
        # last.
        for keep, hold in product((False,) if sharding == "none" else (True, False), repeat=2):
            yield estimate_memory(profile, training, nodes, sharding=sharding, keep=keep, hold=hold)
