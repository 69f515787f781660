"""How much memory one rank of a training needs, in a given layout."""

from typing import Any

import torch

from aboard.core.size import size
from aboard.core.training import Training
from aboard.core.words import many
from aboard.lazy import dataclass
from aboard.train.apart import why_not_apart
from aboard.train.build_meta import layers, on_meta
from aboard.train.mesh import Spread, even
from aboard.train.needs_activations import Activations, Precision, activations
from aboard.train.needs_states import Sizes, States, replicated, sharded, sizes

# What the process itself takes: libraries, the context of an accelerator, the buffers of a backend.
PROCESS = 1 << 30
# What an allocator can't use of what it has.
SLACK = 1.05


@dataclass(frozen=True, kw_only=True)
class Needs:
    """One rank's memory in bytes; `total` is what must be there, `states` the most that the model's states take."""

    parameters: int
    sharding: Spread
    keep: bool
    hold: bool
    ranks: int
    weights: int
    gradients: int
    optimizer: int
    states: int
    # None: the model is of a kind whose activations we can't tell.
    activations: int | None
    logits: int
    total: int

    def fits(self, room: int) -> bool:
        return self.total <= room

    def words(self, nodes: tuple[int, ...], room: int | None) -> str:
        """As in "6.7B in full needs 61 GiB per rank on 2 × 8; you have 80 GiB"."""
        spread = f"{len(nodes)} × {nodes[0]}" if len(set(nodes)) == 1 else " + ".join(map(str, nodes))
        said = f"{_count(self.parameters)} in full needs {size(self.total)} per rank on {spread}"
        return said if room is None else f"{said}; you have {size(room)}"

    def details(self, nodes: tuple[int, ...]) -> str:
        """What the total is made of, and in which layout."""
        where = {
            "none": "whole on every rank",
            "full": f"spread over {many(sum(nodes), 'rank')}",
            "hybrid": f"spread over the {many(nodes[0], 'rank')} of each node",
        }[self.sharding]
        parts = f"states {size(self.states)}, activations {_known(self.activations)}, logits {size(self.logits)}"
        return f"{_count(self.parameters)}, {where}: {parts}"


@dataclass(frozen=True, kw_only=True)
class Model:
    """What the arithmetic wants to know of a model; made once, asked for many layouts."""

    sizes: Sizes
    config: Any
    norms: int
    # Why documents of one row can't be kept apart in it; None where they can.
    why_not_apart: str | None = None


def model(training: Training) -> Model:
    """Built on meta, from the config of its directory."""
    built = on_meta(training, torch.device("cpu"))
    blocks = layers(built)
    norms = sum("Norm" in type(each).__name__ for each in blocks[0].children()) if blocks else 0
    return Model(
        sizes=sizes(built, blocks),
        config=built.config.get_text_config(),
        norms=norms,
        why_not_apart=why_not_apart(built),
    )


def needs(its: Model, training: Training, nodes: tuple[int, ...], *, sharding: Spread, keep: bool, hold: bool) -> Needs:
    """Of one layout, on nodes that have so many ranks each."""
    ranks = sum(nodes)
    states = _states(its.sizes, training, nodes, sharding=sharding, keep=keep, hold=hold)
    precision: Precision = "full" if not training.bf16 else "autocast" if sharding == "none" or ranks == 1 else "half"
    kept = _activations(its, training, precision)
    held = kept.kept(checkpointing=training.gradient_checkpointing) if kept else 0
    logits = kept.logits if kept else 0
    peak = max(states.peak, states.forward + held + logits)
    return Needs(
        parameters=its.sizes.total,
        sharding=sharding,
        keep=keep,
        hold=hold,
        ranks=ranks,
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        states=states.peak,
        activations=held if kept else None,
        logits=logits,
        total=int(peak * SLACK) + PROCESS,
    )


def _states(
    its: Sizes, training: Training, nodes: tuple[int, ...], *, sharding: Spread, keep: bool, hold: bool
) -> States:
    micro = training.micro_batches(sum(nodes))
    if sharding == "none" or sum(nodes) == 1:
        return replicated(its, half=training.bf16, micro=micro, ranks=sum(nodes))
    shards = sum(nodes) if sharding == "full" else even(nodes)
    replicas = sum(nodes) // shards
    return sharded(its, shards=shards, replicas=replicas, half=training.bf16, micro=micro, keep=keep, hold=hold)


def _activations(its: Model, training: Training, precision: Precision) -> Activations | None:
    if not all(hasattr(its.config, name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")):
        return None
    return activations(
        its.config,
        batch=training.per_device_train_batch_size,
        length=training.max_length,
        precision=precision,
        packed=not training.attn_implementation.startswith("flash"),
        norms=its.norms,
    )


def _count(parameters: int) -> str:
    scale, unit = next((pair for pair in ((1e9, "B"), (1e6, "M")) if parameters >= pair[0]), (1e3, "k"))
    return f"{parameters / scale:.{1 if scale == 1e9 else 0}f}{unit}"  # noqa: PLR2004 - a billion


def _known(count: int | None) -> str:
    return "unknown" if count is None else size(count)
