"""Attention of documents that are laid end to end, by torch's own kernel for GPUs: no mask, and no repeated heads."""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface, PreTrainedModel

from aboard.trainer.model.meta_model import find_layers

VARLEN = "aboard_varlen"
# What the kernel supports: at most so wide heads, in steps of so much.
_WIDEST, _STEP = 256, 8
_DROPOUT = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")


def find_varlen_obstacle(model: PreTrainedModel, dtype: torch.dtype) -> str | None:
    """Why this model, computing in `dtype`, can't use the kernel; None if it can, on a GPU that has it."""
    config: Any = model.config.get_text_config()
    if dtype == torch.float32:
        return "flash attention has no kernel for float32"
    if not _has_varlen_options():
        return "torch's kernel for documents has grouped heads and windows since 2.12"
    if config._attn_implementation != "sdpa" or not model._supports_flash_attn:  # noqa: SLF001 - transformers has no other way to ask
        return "flash attention can't replace this model's"
    if not all(map(_passes_options, find_layers(model))):
        return "this model's layers don't pass on where documents end"
    if any(getattr(config, name, None) for name in _DROPOUT):
        return "this model's attention has dropout"
    wide = any(width > _WIDEST or width % _STEP for width in _list_head_widths(config))
    return f"flash attention has kernels for heads of up to {_WIDEST} numbers, in steps of {_STEP}" if wide else None


def has_capped_scores(model: PreTrainedModel) -> bool:
    """Whether it caps its scores (Gemma 2), which of the kernels that torch has only flex attention can do."""
    return bool(getattr(model.config.get_text_config(), "attn_logit_softcapping", None))


def register_varlen() -> str:
    """The name under which transformers finds the kernel."""
    # Imported here: other runs have no use for it.
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

    def attend(
        module: torch.nn.Module,  # noqa: ARG001 - transformers' signature, also below
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,  # noqa: ARG001
        *,
        cu_seq_lens_q: Tensor,
        max_length_q: int,
        scaling: float | None = None,
        sliding_window: int | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        kind = query.device.type
        # Under autocast, rotary embeddings come out in float32.
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype
        width = value.shape[-1]
        query, key, value = (each[0].transpose(0, 1).to(dtype) for each in (query, key, value))
        out: Tensor = varlen_attn(  # type: ignore[assignment] # only with return_aux, it is a tuple
            query,
            key,
            # In models with latent attention, values are narrower than queries.
            pad(value, (0, query.shape[-1] - width)) if width < query.shape[-1] else value,
            cu_seq_lens_q,
            cu_seq_lens_q,
            max_length_q,
            max_length_q,
            scale=scaling,
            # A window counts the query's own position, which the kernel doesn't.
            window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out[None, ..., :width], None

    AttentionInterface.register(VARLEN, attend)
    return VARLEN


def _has_varlen_options() -> bool:
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - as above

    return {"window_size", "enable_gqa"} <= inspect.signature(varlen_attn).parameters.keys()


def _passes_options(layer: torch.nn.Module) -> bool:
    """Whether a layer and its attention accept any options, which they pass on."""
    attentions = [each for each in layer.modules() if "Attention" in type(each).__name__]
    return all(
        any(each.kind is each.VAR_KEYWORD for each in inspect.signature(type(part).forward).parameters.values())
        for part in (layer, *attentions)
    )


def _list_head_widths(config: Any) -> set[int]:
    named = {width for name, width in config.to_dict().items() if name.endswith("head_dim") and width}
    return named or {int(config.hidden_size) // int(config.num_attention_heads)}
