"""Estimates the memory that one rank needs in a given layout."""

from importlib.util import find_spec
from typing import Any

import torch

from aboard.core.plan.training_settings import Training
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.input_text import format_count
from aboard.lazy_dataclass import dataclass
from aboard.train.distributed.device_mesh import ShardingKind, require_even_ranks
from aboard.train.memory.activations import ActivationMemory, Precision, estimate_activations
from aboard.train.memory.model_states import (
    ModelSizes,
    StateMemory,
    estimate_replicated,
    estimate_sharded,
    measure_model,
)
from aboard.train.model.chunked_loss import find_chunking_obstacle
from aboard.train.model.meta_model import build_on_meta, find_layers
from aboard.train.model.packing_support import find_packing_obstacle

# The process itself: libraries, the accelerator's context, the backend's buffers.
PROCESS = 1 << 30
# Fragmentation of the allocator.
SLACK = 1.05


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """One rank's memory in bytes; `total` is what is needed, `states` the peak of the model's states."""

    parameters: int
    sharding: ShardingKind
    keep: bool
    hold: bool
    ranks: int
    weights: int
    gradients: int
    optimizer: int
    states: int
    # None: activations of this kind of model can't be estimated.
    activations: int | None
    logits: int
    total: int

    def fits(self, room: int) -> bool:
        return self.total <= room

    def words(self, nodes: tuple[int, ...], room: int | None) -> str:
        """Such as "6.7B in full needs 61 GiB per rank on 2 × 8; you have 80 GiB"."""
        spread = f"{len(nodes)} × {nodes[0]}" if len(set(nodes)) == 1 else " + ".join(map(str, nodes))
        text = f"{_format_count(self.parameters)} in full needs {format_size(self.total)} per rank on {spread}"
        return text if room is None else f"{text}; you have {format_size(room)}"

    def details(self, nodes: tuple[int, ...]) -> str:
        """The parts of the total, and the layout."""
        where = {
            "none": "replicated on every rank",
            "full": f"sharded across {format_count(sum(nodes), 'rank')}",
            "hybrid": f"sharded across the {format_count(nodes[0], 'rank')} of each node",
        }[self.sharding]
        parts = (
            f"states {format_size(self.states)}, activations {_format_bytes(self.activations)}, logits"
            f" {format_size(self.logits)}"
        )
        return f"{_format_count(self.parameters)}, {where}: {parts}"


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """What the estimate needs of a model; computed once, used for many layouts."""

    sizes: ModelSizes
    config: Any
    norms: int
    # Why documents of one row can't be separated in it; None if they can.
    why_not_apart: str | None = None
    # Why its loss can't be computed in chunks, if that is asked for and can't be done.
    why_not_chunked: str | None = None


def profile_model(training: Training) -> ModelProfile:
    """Profiles the model, built on meta from the config of its directory."""
    built = build_on_meta(training, torch.device("cpu"))
    blocks = find_layers(built)
    norms = sum("Norm" in type(each).__name__ for each in blocks[0].children()) if blocks else 0
    profile = ModelProfile(
        sizes=measure_model(built, blocks),
        config=built.config.get_text_config(),
        norms=norms,
        why_not_apart=find_packing_obstacle(built),
        why_not_chunked=find_chunking_obstacle(built) if training.chunked_loss else None,
    )
    if training.adapter is not None and find_spec("peft") is not None:
        from aboard.train.adapter.inject_adapter import inject_adapter  # noqa: PLC0415 - PEFT takes seconds

        # A module that the adapter names but the model lacks is reported before nodes are claimed.
        inject_adapter(built, training, training.adapter)
    return profile


def estimate_memory(
    profile: ModelProfile, training: Training, nodes: tuple[int, ...], *, sharding: ShardingKind, keep: bool, hold: bool
) -> MemoryEstimate:
    """The memory of one layout, on nodes with this many ranks each."""
    ranks = sum(nodes)
    states = _estimate_states(profile.sizes, training, nodes, sharding=sharding, keep=keep, hold=hold)
    precision: Precision = "full" if not training.bf16 else "autocast" if sharding == "none" or ranks == 1 else "half"
    activation_memory = _estimate_activations(profile, training, precision)
    activation_bytes = (
        activation_memory.saved_bytes(checkpointing=training.gradient_checkpointing) if activation_memory else 0
    )
    logits = activation_memory.logits if activation_memory else 0
    peak = max(states.peak, states.forward + activation_bytes + logits)
    return MemoryEstimate(
        parameters=profile.sizes.total,
        sharding=sharding,
        keep=keep,
        hold=hold,
        ranks=ranks,
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        states=states.peak,
        activations=activation_bytes if activation_memory else None,
        logits=logits,
        total=int(peak * SLACK) + PROCESS,
    )


def _estimate_states(
    model_sizes: ModelSizes,
    training: Training,
    nodes: tuple[int, ...],
    *,
    sharding: ShardingKind,
    keep: bool,
    hold: bool,
) -> StateMemory:
    micro = training.micro_batches(sum(nodes))
    if sharding == "none" or sum(nodes) == 1:
        return estimate_replicated(model_sizes, half=training.bf16, micro=micro, ranks=sum(nodes))
    shards = sum(nodes) if sharding == "full" else require_even_ranks(nodes)
    replicas = sum(nodes) // shards
    return estimate_sharded(
        model_sizes, shards=shards, replicas=replicas, half=training.bf16, micro=micro, keep=keep, hold=hold
    )


def _estimate_activations(profile: ModelProfile, training: Training, precision: Precision) -> ActivationMemory | None:
    if not all(hasattr(profile.config, name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")):
        return None
    return estimate_activations(
        profile.config,
        batch=training.per_device_train_batch_size,
        length=training.max_length,
        precision=precision,
        packed=not training.attn_implementation.startswith("flash"),
        norms=profile.norms,
    )


def _format_count(parameters: int) -> str:
    scale, unit = next((pair for pair in ((1e9, "B"), (1e6, "M")) if parameters >= pair[0]), (1e3, "k"))
    return f"{parameters / scale:.{1 if scale == 1e9 else 0}f}{unit}"  # noqa: PLR2004 - a billion


def _format_bytes(count: int | None) -> str:
    return "unknown" if count is None else format_size(count)
