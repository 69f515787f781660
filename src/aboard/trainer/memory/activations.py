"""Estimates the activations that a forward saves for its backward, and the logits, from the model's config.

The factors are those of transformers' decoders: what their norms, residuals, attention and gated layers save for
autograd, in bytes per token: measured in one pass of a 7B Llama on meta, and compared with small Llama, Qwen and Gemma
models (tests/train/test_model_needs.py). For GPUs and large models they are an extrapolation.
"""

from typing import Any, Literal

from aboard.core.plan.training_settings import Checkpointing
from aboard.lazy_dataclass import dataclass

Precision = Literal["full", "half", "autocast"]

# Norms and residuals of one layer, in bytes per hidden unit of a token.
NORMS: dict[Precision, float] = {"full": 24.0, "half": 16.0, "autocast": 31.0}
# A norm whose weight is frozen doesn't save what it multiplies; autocast copies the input of each adapter's matrix.
FROZEN_NORMS: dict[Precision, float] = {"full": 16.0, "half": 12.0, "autocast": 20.0}
# Models that also norm a layer's output (Gemma 2, OLMo 2) save that too.
SANDWICH = 1.9
FULL, HALF = 4, 2
ROUTED = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, kw_only=True)
class ActivationMemory:
    """In bytes, for one micro-batch."""

    layer: int
    entering: int
    # Outputs of matmuls and attention, which selective checkpointing keeps.
    matmuls: int
    layers: int
    logits: int
    masks: int

    def saved_bytes(self, *, checkpointing: Checkpointing) -> int:
        """The peak at the end of the forward, while the backward is in its first layer."""
        if checkpointing == "selective":
            # The first layer has its matmuls' outputs already.
            return self.masks + self.layer - self.matmuls + self.layers * (self.entering + self.matmuls)
        return self.masks + self.layer + self.layers * (self.entering if checkpointing else self.layer)


@dataclass(frozen=True, kw_only=True)
class AdapterActivations:
    """What the adapters of one layer save for each token: numbers of the compute type, and bytes of dropout's masks.

    Negative if they save less than the weights of the layer would, because few of them have an adapter.
    """

    numbers: int = 0
    masks: int = 0


def estimate_activations(
    config: Any,
    *,
    batch: int,
    length: int,
    precision: Precision,
    packed: bool,
    norms: int,
    adapter: AdapterActivations | None = None,
    chunk_rows: int | None = None,
) -> ActivationMemory:
    """For a text model; `norms` is the number of norms per layer, without those of its heads.

    `chunk_rows` are the positions whose logits exist at the same time; None if all do.
    """
    tokens = batch * length
    size = FULL if precision == "full" else HALF
    residual = HALF if precision == "half" else FULL
    hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
    width = int(getattr(config, "head_dim", None) or hidden // heads)
    pairs = int(getattr(config, "num_key_value_heads", None) or heads)
    kinds = len(set(getattr(config, "layer_types", None) or ("all",)))
    eager = config._attn_implementation == "eager"  # noqa: SLF001 - transformers has no other way to ask
    # Softmax in fp32, its cast, and the scores before it.
    square = heads * length * (FULL + 2 * size) if eager else 0
    # With a mask, keys and values are repeated for each head.
    pairs = heads if packed else pairs
    layer = (
        (NORMS if adapter is None else FROZEN_NORMS)[precision]
        * (SANDWICH if norms > 2 else 1.0)  # noqa: PLR2004 - one before attention, one before the rest
        * hidden
        + size * (2 * heads + 2 * pairs) * width
        + size * 4 * read_mlp_width(config)
        + square
        + (0 if adapter is None else size * adapter.numbers + adapter.masks)
    )
    # Queries, keys, values, and what comes out of attention; fused attention only.
    attention = (2 * heads + 2 * pairs - (heads if eager else 0)) * width
    return ActivationMemory(
        layer=int(tokens * layer),
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
    whole = int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    if not any(getattr(config, name, None) for name in ROUTED):
        return whole
    each = int(getattr(config, "moe_intermediate_size", None) or whole)
    shared = int(getattr(config, "n_shared_experts", None) or 0)
    return each * (int(getattr(config, "num_experts_per_tok", None) or 1) + shared)
