"""Estimates the activations that a forward saves for its backward, and the logits, from the model's config and layers.

In bytes per token, for transformers' decoders: what their norms save is counted on meta, what their attention and MLPs
save is known. Compared with the tensors that autograd saves in 15 configurations (tests/train/test_model_needs.py); the
attention of GPUs saves what that of CPUs does, by its documentation.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import nn

from aboard.core.plan.training_settings import Checkpointing
from aboard.lazy_dataclass import dataclass

Precision = Literal["full", "half", "autocast"]

_ROWS = 4096
PRECISIONS: tuple[Precision, ...] = ("full", "half", "autocast")
FULL, HALF = 4, 2
ROUTED = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """The modules of a layer: for each precision, the bytes per token that its norms save, and the model's last one.

    `linears` are those that read what comes out of a norm; `gated` is whether the MLP multiplies two matrices.
    """

    norms: Mapping[Precision, float]
    last: Mapping[Precision, float]
    linears: int
    gated: bool
    # One matmul makes queries, keys and values.
    fused: bool


@dataclass(frozen=True, kw_only=True)
class ActivationMemory:
    """In bytes, for one micro-batch; `last` is what the norm behind the layers and the head save."""

    layer: int
    last: int
    entering: int
    # Outputs of matmuls and attention, which selective checkpointing keeps.
    matmuls: int
    layers: int
    logits: int
    masks: int

    def saved_bytes(self, *, checkpointing: Checkpointing) -> int:
        """At the end of the forward."""
        kept = {True: self.entering, False: self.layer, "selective": self.entering + self.matmuls}[checkpointing]
        return self.masks + self.last + self.layers * kept

    def peak_bytes(self, *, checkpointing: Checkpointing) -> int:
        """While the backward is in its first layer, which has its matmuls' outputs already if they are kept."""
        return (
            self.saved_bytes(checkpointing=checkpointing) + self.layer - self.matmuls * (checkpointing == "selective")
        )


@dataclass(frozen=True, kw_only=True)
class AdapterActivations:
    """What the adapters of one layer save for each token: numbers of the compute type, and bytes of dropout's masks.

    Negative if they save less than the weights of the layer would, because few of them have an adapter.
    """

    numbers: int = 0
    masks: int = 0
    # More numbers under autocast.
    casts: int = 0


def profile_layer(block: nn.Module, last: nn.Module | None, config: Any) -> LayerProfile:
    """Profiles a layer of a text model on meta; `last` is the norm behind the layers."""
    heads, pairs, width = _read_heads(config)
    hidden, mlp = int(config.hidden_size), int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    linears = [
        (int(each.in_features), int(each.out_features))
        for name, each in block.named_modules()
        # Not an adapter, nor its wrapper.
        if hasattr(each, "in_features") and "lora_" not in name and not hasattr(each, "lora_A")
    ]
    norms: dict[Precision, float] = dict.fromkeys(PRECISIONS, 0.0)
    for name, norm in block.named_modules():
        if "Norm" in type(norm).__name__ and (weight := getattr(norm, "weight", None)) is not None:
            # Those of queries and keys are shared by the heads, and read what a matmul has made.
            own = weight.numel() == width != hidden
            count = (heads if name.rpartition(".")[2].startswith("q") else pairs) if own else 1
            for precision in PRECISIONS:
                norms[precision] += count * _count_saved_bytes(norm, precision, inner="." in name)
    made = sum(out // mlp for _, out in linears if out in {mlp, 2 * mlp})
    return LayerProfile(
        norms=norms,
        last={each: 0.0 if last is None else _count_saved_bytes(last, each) for each in PRECISIONS},
        linears=sum(given == hidden for given, _ in linears) - (heads * width == hidden),
        gated=made != 1,
        fused=any(out == (heads + 2 * pairs) * width for _, out in linears),
    )


def _count_saved_bytes(norm: nn.Module, precision: Precision, *, inner: bool = False) -> float:
    """What autograd saves for one row of numbers."""
    norm, width = deepcopy(norm).to("meta"), norm.weight.numel()  # type: ignore[operator]
    if precision == "half":
        norm = norm.to(torch.bfloat16)
    dtype = torch.float32 if precision == "full" or (precision == "autocast" and not inner) else torch.bfloat16
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage  # noqa: SLF001 - its identity on meta
        return tensor

    # Many rows: the weights are saved, too.
    rows = torch.empty(_ROWS, width, dtype=dtype, device="meta", requires_grad=True)
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, keep):
            # What comes out is alive as well, but counted with those that read it.
            norm(rows)
    except TypeError:
        # One that reads more than rows: as most norms do.
        return 2.0 * FULL * width
    return sum(storage.nbytes() for storage in saved.values()) // _ROWS


def _read_heads(config: Any) -> tuple[int, int, int]:
    """The heads of queries, those of keys and values, and the width of each."""
    heads = int(config.num_attention_heads)
    pairs = int(getattr(config, "num_key_value_heads", None) or heads)
    return heads, pairs, int(getattr(config, "head_dim", None) or int(config.hidden_size) // heads)


def estimate_activations(
    config: Any,
    *,
    batch: int,
    length: int,
    precision: Precision,
    packed: bool,
    profile: LayerProfile,
    adapter: AdapterActivations | None = None,
    chunk_rows: int | None = None,
) -> ActivationMemory:
    """For a text model. `chunk_rows` are the positions whose logits exist at the same time; None if all do."""
    tokens = batch * length
    size = FULL if precision == "full" else HALF
    residual = HALF if precision == "half" else FULL
    hidden, (heads, pairs, width) = int(config.hidden_size), _read_heads(config)
    kinds = len(set(getattr(config, "layer_types", None) or ("all",)))
    eager = config._attn_implementation == "eager"  # noqa: SLF001 - transformers has no other way to ask
    # Softmax in fp32, its cast, and the capped scores before it; fused attention keeps a number per head.
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    square = length * (FULL + size * (capped + (size != FULL))) if eager else FULL
    # Attention with a mask reads a copy of keys and values for each head of queries.
    copied = (packed or eager) and heads != pairs
    attention = 2 * heads + 2 * (heads if copied else pairs)
    if profile.fused and not copied:
        # Values are a part of what is saved as a whole.
        attention += heads + pairs
    # autocast casts what comes out of a norm for each linear, and no grouped matmul.
    inputs = profile.linears if precision == "autocast" and adapter is None else 2
    routed, shared = _read_mlp_widths(config)
    experts = int(getattr(config, "num_experts_per_tok", None) or 1) if routed else 0
    layer = (
        profile.norms[precision]
        + size * (inputs * hidden + attention * width + (4 if profile.gated else 2) * shared)
        + (FULL if precision == "autocast" else size) * (4 * routed + 2 * experts * hidden)
        + heads * square
        + (0 if adapter is None else size * adapter.numbers + adapter.masks)
        + (size * adapter.casts if adapter is not None and precision == "autocast" else 0)
    )
    # Queries, keys, values, and what comes out of attention; fused attention only.
    attention = (2 * heads + 2 * pairs - (heads if eager else 0)) * width
    return ActivationMemory(
        layer=int(tokens * layer),
        last=int(tokens * (profile.last[precision] + size * hidden)),
        entering=tokens * hidden * residual,
        matmuls=tokens * size * (attention + 2 * read_mlp_width(config) + 2 * hidden),
        layers=int(config.num_hidden_layers),
        # The logits and their gradient of the same size; all tokens may be supervised.
        logits=2 * min(tokens, chunk_rows or tokens) * int(config.vocab_size) * size,
        # One for all layers of a kind.
        masks=batch * length * length * size * kinds if packed or eager else 0,
    )


def read_mlp_width(config: Any) -> int:
    """The width between the two halves of the MLP; for a mixture of experts, that of a token's own experts."""
    return sum(_read_mlp_widths(config))


def _read_mlp_widths(config: Any) -> tuple[int, int]:
    """Of a token's routed experts together, and of what every token passes through."""
    whole = int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    if not any(getattr(config, name, None) for name in ROUTED):
        return 0, whole
    each = int(getattr(config, "moe_intermediate_size", None) or whole)
    shared = int(getattr(config, "n_shared_experts", None) or 0)
    return each * int(getattr(config, "num_experts_per_tok", None) or 1), each * shared
