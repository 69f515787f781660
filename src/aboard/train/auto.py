"""`sharding: auto`: the fastest layout that fits."""

from collections.abc import Iterator

from aboard.core.training import Training
from aboard.lazy import dataclass
from aboard.train.mesh import Spread, even
from aboard.train.needs_estimate import Model, Needs, model, needs


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the model is spread, and whether there is room to keep gathered weights and to hold whole gradients."""

    sharding: Spread
    keep: bool = False
    hold: bool = False


def layout(training: Training, nodes: tuple[int, ...], *, room: int) -> Layout:
    """What every rank comes to alike, since all are given the same; `room` is the least memory of any rank."""
    asked = spreads(training, nodes)
    if asked == ("none",):
        return Layout(sharding="none")
    found = best(model(training), training, nodes, room=room)
    return Layout(sharding=found.sharding, keep=found.keep, hold=found.hold)


def spreads(training: Training, nodes: tuple[int, ...]) -> tuple[Spread, ...]:
    """Those that may be taken, fastest first: on one node hybrid is full, and over nodes of one rank it is none."""
    if sum(nodes) == 1:
        return ("none",)
    uneven = len(set(nodes)) > 1
    if training.sharding == "auto":
        return ("none", "full") if uneven or len(nodes) == 1 or nodes[0] == 1 else ("none", "hybrid", "full")
    if training.sharding == "hybrid":
        return ("none",) if even(nodes) == 1 else ("full",) if len(nodes) == 1 else ("hybrid",)
    return (training.sharding,)


def best(its: Model, training: Training, nodes: tuple[int, ...], *, room: int | None) -> Needs:
    """The first that fits; if none does, or the room isn't known, the one that needs the least."""
    tried = list(_tried(its, training, nodes))
    fitting = (each for each in tried if room is not None and each.fits(room))
    return next(fitting, None) or min(tried, key=lambda each: each.total)


def _tried(its: Model, training: Training, nodes: tuple[int, ...]) -> Iterator[Needs]:
    for sharding in spreads(training, nodes):
        # Kept weights save a gather in each backward; held gradients save a reduction in each micro-batch but the last.
        thrifts = (
            ((False, False),) if sharding == "none" else ((True, True), (True, False), (False, True), (False, False))
        )
        for keep, hold in thrifts:
            yield needs(its, training, nodes, sharding=sharding, keep=keep, hold=hold)
