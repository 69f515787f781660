"""Suggests setting changes that make a training run fit, each verified by the same estimate."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from aboard.core.plan.training_settings import SETTINGS, Adapter, Training
from aboard.core.text.byte_sizes import format_size
from aboard.lazy_dataclass import dataclass
from aboard.trainer.distributed.auto_sharding import find_best_layout
from aboard.trainer.memory.estimate import ModelProfile, profile_model

SHORTEST = 512
MOST_NODES = 64


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """One setting as typed, and the training with it."""

    typed: str
    training: Training


def suggest_changes(
    profile: ModelProfile, training: Training, nodes: tuple[int, ...], *, room: int | None, gpus: bool = False
) -> Iterator[str]:
    """Options to type, the least intrusive first: one change if enough, else several together, more nodes, LoRA.

    If the memory is unknown, each change comes with its estimate.
    """
    list_helpful = partial(list_changes, gpus=gpus, chunks=profile.why_not_chunked is None)
    single = [each for each in list_helpful(training) if _is_fitting(profile, each.training, nodes, room)]
    if single:
        yield from (_format_line(profile, each.typed, each.training, nodes) for each in single)
        return
    together, typed = training, ""
    while left := list(list_helpful(together)):
        together, typed = left[0].training, f"{typed} {left[0].typed}".strip()
        if _is_fitting(profile, together, nodes, room):
            yield _format_line(profile, typed, together, nodes)
            return
    grown = nodes
    while len(grown) * 2 <= MOST_NODES:
        grown *= 2
        if _is_fitting(profile, together, grown, room):
            yield _format_line(profile, f"{typed}   # and {len(grown)} nodes like these;".strip(), together, grown)
            break
    if training.adapter is None and not training.from_scratch:
        yield from _suggest_adapter(training, nodes, room=room, gpus=gpus)


def _suggest_adapter(training: Training, nodes: tuple[int, ...], *, room: int | None, gpus: bool) -> Iterator[str]:
    """LoRA trains something else, so it comes last; with as few other changes as it needs."""
    adapted = replace(training, adapter=Adapter())
    profile, typed = profile_model(adapted), f"--set train.adapter.r={Adapter().r}"
    while not _is_fitting(profile, adapted, nodes, room):
        change = next(list_changes(adapted, gpus=gpus, chunks=profile.why_not_chunked is None), None)
        if change is None:
            return
        adapted, typed = change.training, f"{typed} {change.typed}"
    yield _format_line(profile, typed, adapted, nodes)


def list_changes(training: Training, *, gpus: bool = False, chunks: bool = True) -> Iterator[SettingChange]:
    """Changes that don't affect the result come before those that do.

    Offloading helps only beside GPUs; `chunks` if the model's loss can be computed in chunks.
    """
    if training.sharding not in {"auto", "full"} and not training.load_in_4bit:
        yield _make_change(training, sharding="full")
    if chunks and not training.chunked_loss:
        yield _make_change(training, chunked_loss=True)
    if not training.gradient_checkpointing:
        yield _make_change(training, gradient_checkpointing=True)
    if training.per_device_train_batch_size > 1 and training.global_batch_size is None:
        more = training.gradient_accumulation_steps * training.per_device_train_batch_size
        yield _make_change(training, per_device_train_batch_size=1, gradient_accumulation_steps=more)
    elif training.per_device_train_batch_size > 1:
        yield _make_change(training, per_device_train_batch_size=1)
    if gpus and not training.cpu_offload and training.sharding != "none" and not training.load_in_4bit:
        yield _make_change(training, cpu_offload=True)
    if training.optim == "adamw":
        yield _make_change(training, optim="adamw_8bit")
    if training.max_length > SHORTEST:
        yield _make_change(training, max_length=max(SHORTEST, training.max_length // 2))


def _make_change(training: Training, **fields: Any) -> SettingChange:
    typed = " ".join(f"--set {SETTINGS[name].section}.{name}={str(value).lower()}" for name, value in fields.items())
    return SettingChange(typed=typed, training=replace(training, **fields))


def _is_fitting(profile: ModelProfile, training: Training, nodes: tuple[int, ...], room: int | None) -> bool:
    return room is None or find_best_layout(profile, training, nodes, room=room).fits(room)


def _format_line(profile: ModelProfile, typed: str, training: Training, nodes: tuple[int, ...]) -> str:
    least = find_best_layout(profile, training, nodes, room=None).total
    return f"{typed}{'' if '#' in typed else '   #'} then {format_size(least)} per rank"
