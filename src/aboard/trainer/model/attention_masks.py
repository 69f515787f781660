"""How attention separates the documents of one row, without a device sync: by where they end, or by masks.

Kernels for GPUs take rows laid end to end, and the ends of their documents. For other attention, transformers detects
packed rows from position ids, which syncs with the device (`find_packed_sequence_indices`). So masks are built here, in
the form that `generate` passes (`create_masks_for_generate`), and none is built if causality is enough.
"""

import inspect
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from aboard.core.text.byte_sizes import format_size
from aboard.lazy_dataclass import dataclass
from aboard.trainer.collate import Collator, LogitPositions, MicroBatch
from aboard.trainer.model.meta_model import FLASH_SINCE, can_import
from aboard.trainer.model.packing_support import WINDOWED, build_packing_error, find_packing_obstacle, has_position_ids
from aboard.trainer.model.varlen_attention import VARLEN, find_varlen_obstacle, has_capped_scores, register_varlen

# Under this name transformers builds no mask of its own and leaves None alone: causal by the kernel's own flag.
_CAUSAL = "aboard_sdpa"
_LAID_END_TO_END = ("flash_attention_2", "flash_attention_3", VARLEN)
_FLEX = "flex_attention"
# One mask for all layers, instead of one per kind of layer.
_ALL = ""
_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class AttentionMasks:
    """`windows`: the attention window per kind of layer, None for full attention.

    If `why_not` says that documents can't be separated, each row has only one, and the model builds its own mask.
    `why_dense` says why a GPU doesn't separate them without masks.
    """

    attention: str
    windows: Mapping[str, int | None]
    positions: bool
    why_not: str | None
    why_dense: str | None
    keeps: LogitPositions
    dtype: torch.dtype

    def collate(self, fixed: tuple[int, int] | None = None) -> Collator:
        # Concatenated rows are like packed ones.
        flat = self.attention in _LAID_END_TO_END and self.why_not is None
        return Collator(flat=flat, keeps=self.keeps, fixed=fixed)

    def describe_cost(self, rows: int, length: int) -> str | None:
        """What masks of packed rows cost on a GPU; None if there are none."""
        if self.why_dense is None:
            return None
        size = format_size(len(self.windows) * rows * length * length * self.dtype.itemsize)
        return f"packed rows need masks, which take {size} and rule out the fastest kernels: {self.why_dense}"

    def inputs(self, micro: MicroBatch) -> dict[str, Any]:
        """The keyword arguments of the model's forward for this micro-batch, which is already on the device."""
        named: dict[str, Any] = {"input_ids": micro.input_ids, "use_cache": False}
        if self.positions:
            named["position_ids"] = micro.position_ids
        if micro.keep is not None:
            named["logits_to_keep"] = micro.keep
        if micro.ends is not None:
            if micro.fixed:
                # The only size that differs between micro-batches.
                torch._dynamo.maybe_mark_dynamic(micro.ends, 0)  # noqa: SLF001 - torch's public name of it
            named |= {"cu_seq_lens_q": micro.ends, "cu_seq_lens_k": micro.ends}
            return named | {"max_length_q": micro.longest, "max_length_k": micro.longest}
        if self.why_not is not None:
            if micro.documents is not None:
                raise build_packing_error(self.why_not)
            return named
        masks = {kind: self._mask(micro, window) for kind, window in self.windows.items()}
        return named | {"attention_mask": masks.get(_ALL, masks)}

    def _mask(self, micro: MicroBatch, window: int | None) -> Tensor | BlockMask | None:
        rows, length = micro.input_ids.shape
        reach = length if window is None else window
        if self.attention == _FLEX:
            return _make_block_mask(micro, reach)
        if length <= reach and micro.documents is None and self.attention == _CAUSAL:
            return None
        place = torch.arange(length, device=micro.input_ids.device)
        visible = place[:, None] >= place
        if reach < length:
            visible &= place > place[:, None] - reach
        if micro.documents is not None:
            visible = visible & (micro.documents[:, :, None] == micro.documents[:, None, :])
        visible = visible.expand(rows, length, length)[:, None]
        # What is added to the scores. Of booleans, each layer's sdpa would make such a mask of its own, and save it.
        return torch.zeros((), dtype=self.dtype, device=visible.device).where(visible, torch.finfo(self.dtype).min)


def build_masks(
    model: PreTrainedModel, dtype: torch.dtype, device: torch.device = _CPU, *, chosen: bool = False
) -> AttentionMasks:
    """For this model, which computes in `dtype`; unless its attention was `chosen`, it gets the best that works."""
    why_dense = replace_dense_attention(model, dtype, device, chosen=chosen)
    config = model.config.get_text_config()
    attention = str(config._attn_implementation)  # noqa: SLF001 - transformers has no other way to ask
    why_not = find_packing_obstacle(model)
    if attention == "sdpa" and why_not is None:
        AttentionInterface.register(_CAUSAL, sdpa_attention_forward)
        model.set_attn_implementation(_CAUSAL)
        attention = _CAUSAL
    return AttentionMasks(
        attention=attention,
        windows=_read_windows(config),
        positions=has_position_ids(model),
        why_not=why_not,
        why_dense=why_dense,
        keeps=_find_logit_positions(model),
        dtype=dtype,
    )


def needs_masks(attention: str) -> bool:
    """Whether packed rows of a model with this attention need masks of length × length."""
    return attention not in {*_LAID_END_TO_END, _FLEX}


def replace_dense_attention(
    model: PreTrainedModel, dtype: torch.dtype, device: torch.device, *, chosen: bool
) -> str | None:
    """Switches a model for GPUs to attention without masks of packed rows; returns why not, if that can't be done.

    Without a GPU here, an estimate assumes one of the Ampere generation or newer.
    """
    attention = str(model.config.get_text_config()._attn_implementation)  # noqa: SLF001 - as above
    if device.type != "cuda" or attention not in {"sdpa", "eager"} or find_packing_obstacle(model) is not None:
        return None
    if chosen:
        return f"attn_implementation is {attention}"
    if obstacle := _find_device_obstacle(device):
        return obstacle
    if has_capped_scores(model):
        if not can_import("triton"):
            return "flex attention, which can cap scores, needs Triton"
        model.set_attn_implementation(_FLEX)
        return None
    obstacle = find_varlen_obstacle(model, dtype)
    if obstacle is None:
        model.set_attn_implementation(register_varlen())
    return obstacle


def _find_device_obstacle(device: torch.device) -> str | None:
    if not torch.cuda.is_available():
        return None
    if torch.version.hip is not None or not torch.backends.cuda.is_flash_attention_available():
        return "this torch was not built with flash attention for NVIDIA's GPUs"
    old = torch.cuda.get_device_capability(device) < FLASH_SINCE
    return "kernels without them need a GPU of the Ampere generation or newer" if old else None


def _make_block_mask(micro: MicroBatch, reach: int) -> BlockMask:
    """Which blocks of scores flex attention computes, and where in them it has to look at each score."""
    rows, length = micro.input_ids.shape
    documents = micro.documents

    def is_visible(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (query >= key) & (query - key < reach)
        return seen if documents is None else seen & (documents[row, query] == documents[row, key])

    return create_block_mask(is_visible, rows, None, length, length, device=micro.input_ids.device)


def _read_windows(config: Any) -> dict[str, int | None]:
    """Reads the config as `create_masks_for_generate` does; chunked and recurrent layers are not masked here."""
    window = cast("int | None", getattr(config, "sliding_window", None))
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return {_ALL: window}
    return {kind: window if kind == WINDOWED else None for kind in sorted(set(kinds))}


def _find_logit_positions(model: PreTrainedModel) -> LogitPositions:
    forward = inspect.unwrap(type(model).forward)
    if "logits_to_keep" not in inspect.signature(forward).parameters:
        return "none"
    # In transformers 5.22, models that slice by this function accept different positions per row.
    return "each" if "slice_logits_to_keep" in forward.__code__.co_names else "all"
