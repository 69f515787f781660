"""What would make a training fit: changes of its settings, each of them tried by the same estimate."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from aboard.core.size import size
from aboard.core.training import Training
from aboard.lazy import dataclass
from aboard.train.auto import best
from aboard.train.needs_estimate import Model

SHORTEST = 512
MOST_NODES = 64


@dataclass(frozen=True, kw_only=True)
class Change:
    """One setting, as it is typed, and the training that has it."""

    typed: str
    training: Training


def advice(its: Model, training: Training, nodes: tuple[int, ...], *, room: int | None) -> Iterator[str]:
    """What to type, the least painful first: one change where that is enough, else as many as it takes, then nodes.

    Where the room isn't known, each change is told with what it comes to.
    """
    single = [each for each in changes(training) if _fits(its, each.training, nodes, room)]
    if single:
        yield from (_line(its, each.typed, each.training, nodes) for each in single)
        return
    together, typed = training, ""
    while left := list(changes(together)):
        together, typed = left[0].training, f"{typed} {left[0].typed}".strip()
        if _fits(its, together, nodes, room):
            yield _line(its, typed, together, nodes)
            return
    grown = nodes
    while len(grown) * 2 <= MOST_NODES:
        grown *= 2
        if _fits(its, together, grown, room):
            yield _line(its, f"{typed}   # and {len(grown)} such nodes;".strip(), together, grown)
            return


def changes(training: Training) -> Iterator[Change]:
    """Those that don't change what is learned come before the one that does."""
    if training.sharding not in {"auto", "full"}:
        yield _change(training, sharding="full")
    if not training.gradient_checkpointing:
        yield _change(training, gradient_checkpointing=True)
    if training.per_device_train_batch_size > 1 and training.global_batch_size is None:
        more = training.gradient_accumulation_steps * training.per_device_train_batch_size
        yield _change(training, per_device_train_batch_size=1, gradient_accumulation_steps=more)
    elif training.per_device_train_batch_size > 1:
        yield _change(training, per_device_train_batch_size=1)
    if training.max_length > SHORTEST:
        yield _change(training, max_length=max(SHORTEST, training.max_length // 2))


def _change(training: Training, **fields: Any) -> Change:
    typed = " ".join(f"--set train.{name}={str(value).lower()}" for name, value in fields.items())
    return Change(typed=typed, training=replace(training, **fields))


def _fits(its: Model, training: Training, nodes: tuple[int, ...], room: int | None) -> bool:
    return room is None or best(its, training, nodes, room=room).fits(room)


def _line(its: Model, typed: str, training: Training, nodes: tuple[int, ...]) -> str:
    least = best(its, training, nodes, room=None).total
    return f"{typed}{'' if '#' in typed else '   #'} then {size(least)} per rank"
