"""Estimates the memory that one rank needs in a given layout."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from aboard.core.plan.training_settings import Adapter, Training
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.input_text import format_count
from aboard.lazy_dataclass import dataclass
from aboard.trainer.distributed.device_mesh import ShardingKind
from aboard.trainer.memory.activations import (
    ActivationMemory,
    AdapterActivations,
    LayerProfile,
    Precision,
    estimate_activations,
    profile_layer,
    read_mlp_width,
)
from aboard.trainer.memory.model_states import FULL, ModelSizes, estimate_states, measure_model
from aboard.trainer.model.attention_masks import needs_masks, replace_dense_attention
from aboard.trainer.model.chunked_loss import count_chunk_rows, find_chunking_obstacle
from aboard.trainer.model.meta_model import DTYPES, build_on_meta, find_layers
from aboard.trainer.model.packing_support import find_packing_obstacle

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The process itself, and the fragmentation of its allocator. On a GPU, that is CUDA's context, NCCL's buffers and
# cuBLAS's workspaces: 2 to 4 GiB, by what others report. It was not measured.
PROCESS, FRAGMENTATION = 1 << 30, 1.05
GPU_PROCESS, GPU_FRAGMENTATION = 3 << 30, 1.09
# A layout leaves this much of the memory free, if another one fits: the estimate may be too low.
COMFORT = 0.9


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """One rank's memory in bytes; `total` is what is needed, `states` the peak of the model's states."""

    parameters: int
    # Those that are trained: fewer with an adapter.
    trained: int
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
    # On the host beside it, with cpu_offload: not measured.
    host: int
    # What tensors take at most; the total adds the process and the allocator's fragmentation.
    peak: int
    total: int

    def fits(self, room: int) -> bool:
        return self.total <= room

    def fits_with_room(self, room: int) -> bool:
        return self.total <= room * COMFORT

    def words(self, nodes: tuple[int, ...], room: int | None) -> str:
        """Such as "6.7B in full needs 61 GiB per rank on 2 × 8; you have 80 GiB", or "7B with LoRA (40M trained) …"."""
        spread = f"{len(nodes)} × {nodes[0]}" if len(set(nodes)) == 1 else " + ".join(map(str, nodes))
        how = "in full" if self.trained == self.parameters else f"with LoRA ({_format_count(self.trained)} trained)"
        text = f"{_format_count(self.parameters)} {how} needs {format_size(self.total)} per rank on {spread}"
        return text if room is None else f"{text}; you have {format_size(room)}"

    def details(self, nodes: tuple[int, ...]) -> str:
        """The parts of the total, and the layout."""
        where = {
            "none": "replicated on every rank",
            "full": f"sharded across {format_count(sum(nodes), 'rank')}",
            "hybrid": f"sharded across the {format_count(nodes[0], 'rank')} of each node",
        }[self.sharding]
        parts = (
            f"{format_size(self.states)} of model state, {where}; activations {_format_bytes(self.activations)}, logits"
            f" {format_size(self.logits)}"
        )
        if self.host:
            parts += f"; {format_size(self.host)} of host memory, not measured"
        return f"{parts} ({_format_count(self.parameters)} parameters)"


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """What the estimate needs of a model; computed once, used for many layouts."""

    sizes: ModelSizes
    config: Any
    # None: a model without layers, or of a kind whose activations can't be estimated.
    layer: LayerProfile | None
    adapter: AdapterActivations | None = None
    # Why documents of one row can't be separated in it; None if they can.
    why_not_apart: str | None = None
    # Why its loss can't be computed in chunks; None if it can.
    why_not_chunked: str | None = None


def profile_model(training: Training) -> ModelProfile:
    """Profiles the model, built on meta from the config of its directory."""
    built = build_on_meta(training, torch.device("cpu"))
    blocks, config = find_layers(built), built.config.get_text_config()
    device, chosen = (
        torch.device("cuda" if training.device == "cuda" else "cpu"),
        training.attn_implementation != "auto",
    )
    replace_dense_attention(built, DTYPES[training.precision], device, chosen=chosen)
    why_not_apart, why_not_chunked = find_packing_obstacle(built), find_chunking_obstacle(built)
    adapter = None
    estimable = all(hasattr(config, name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    if training.adapter is not None:
        # Imported here: PEFT takes seconds, which only runs with an adapter need. A module that the adapter names but
        # the model lacks is reported before nodes are claimed.
        from aboard.trainer.adapter.inject_adapter import inject_adapter  # noqa: PLC0415

        inject_adapter(built, training, training.adapter)
        adapter = _count_adapter_activations(config, training.adapter, blocks)
    return ModelProfile(
        sizes=measure_model(built, blocks),
        config=config,
        layer=profile_layer(blocks[0], _find_last_norm(built), config) if blocks and estimable else None,
        adapter=adapter,
        why_not_apart=why_not_apart,
        why_not_chunked=why_not_chunked,
    )


def _find_last_norm(model: "PreTrainedModel") -> nn.Module | None:
    return next((each for each in model.base_model.children() if "Norm" in type(each).__name__), None)


def _count_adapter_activations(config: Any, adapter: Adapter, blocks: list[nn.Module]) -> AdapterActivations:
    """Of the first layer; an adapter saves its own input, which frozen weights don't need."""
    shapes = [
        (int(each.in_features), int(each.out_features))  # type: ignore[arg-type]
        for block in blocks[:1]
        for each in block.modules()
        if hasattr(each, "lora_A") and hasattr(each, "in_features")
    ]
    hidden, mlp = int(config.hidden_size), read_mlp_width(config)
    # Both norms' outputs and the MLP's product, which adapters of the same input share.
    shared = hidden * any(given == hidden and made != mlp for given, made in shapes)
    shared += hidden * any(made == mlp for _, made in shapes) + mlp * any(given == mlp for given, _ in shapes)
    numbers = adapter.r * len(shapes) - (2 * hidden + mlp - shared)
    masks = sum(given for given, _ in shapes) if adapter.dropout else 0
    if adapter.dropout:
        # Each has its own copy, beside what it was made of.
        numbers += masks
    if adapter.use_dora:
        # What the magnitudes multiply: the output of the base and that of the adapter.
        numbers += 2 * sum(made for _, made in shapes)
    # autocast casts the input of each adapter anew; the MLP's product is saved once in any case. Dropout reads float32.
    apart = sum(given for given, _ in shapes if given != mlp) - min(shared, 2 * hidden)
    casts = shared if adapter.dropout else apart
    return AdapterActivations(numbers=numbers, masks=masks, casts=casts)


def estimate_memory(
    profile: ModelProfile, training: Training, nodes: tuple[int, ...], *, sharding: ShardingKind, keep: bool, hold: bool
) -> MemoryEstimate:
    """The memory of one layout, on nodes with this many ranks each."""
    ranks = sum(nodes)
    states = estimate_states(profile.sizes, training, nodes, sharding=sharding, keep=keep, hold=hold)
    half = training.precision != "float32"
    precision: Precision = "full" if not half else "autocast" if sharding == "none" or ranks == 1 else "half"
    activation_memory = estimate_model_activations(profile, training, precision)
    activation_bytes = (
        activation_memory.peak_bytes(checkpointing=training.gradient_checkpointing) if activation_memory else 0
    )
    logits = activation_memory.logits if activation_memory else 0
    if training.chunked_loss and sharding == "none":
        # The head's gradient comes with its loss, before all others.
        logits += FULL * profile.sizes.embedding
    on_gpu = training.device == "cuda"
    # Offloaded shards are on the host; gradients go there once they are reduced.
    moved = states.weights + states.optimizer if training.cpu_offload else 0
    peak = max(states.peak, states.forward + activation_bytes + logits) - moved
    return MemoryEstimate(
        parameters=profile.sizes.total,
        trained=profile.sizes.trained,
        sharding=sharding,
        keep=keep,
        hold=hold,
        ranks=ranks,
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        states=states.peak - moved,
        activations=activation_bytes if activation_memory else None,
        logits=logits,
        host=moved and moved + states.gradients,
        peak=peak,
        total=int(peak * (GPU_FRAGMENTATION if on_gpu else FRAGMENTATION)) + (GPU_PROCESS if on_gpu else PROCESS),
    )


def estimate_model_activations(
    profile: ModelProfile, training: Training, precision: Precision
) -> ActivationMemory | None:
    """Of one micro-batch; None if activations of this kind of model can't be estimated."""
    if profile.layer is None:
        return None
    return estimate_activations(
        profile.config,
        batch=training.per_device_train_batch_size,
        length=training.max_length,
        precision=precision,
        packed=needs_masks(profile.config._attn_implementation),  # noqa: SLF001 - transformers has no other way to ask
        profile=profile.layer,
        adapter=profile.adapter,
        # As on GPUs, where a chunk is larger.
        chunk_rows=count_chunk_rows(int(profile.config.vocab_size), "cuda") if training.chunked_loss else None,
    )


def _format_count(parameters: int) -> str:
    scale, unit = next((pair for pair in ((1e9, "B"), (1e6, "M")) if parameters >= pair[0]), (1e3, "k"))
    return f"{parameters / scale:.{1 if scale == 1e9 else 0}f}{unit}"  # noqa: PLR2004 - a billion


def _format_bytes(count: int | None) -> str:
    return "unknown" if count is None else format_size(count)
