"""Reference kernels for the attention of a device without any: flash, efficient, and flash for documents end to end.

They compute what torch's own definition of attention computes on the CPU, return the tensors that the real ones return,
so that autograd saves what it saves on a GPU, and refuse what the real ones refuse. Gradients come from a second
forward. The choice between them is that of torch: flash, efficient, else by definition; cuDNN's is left out.
"""

import ctypes
import importlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

WIDEST, STEP = 256, 8
Compute = Callable[..., Any]


def install(capability: tuple[int, ...], *, key: str = "CUDA", float32: bool = False) -> Any:
    """Registers them for the devices of this key; `float32` lets tests compare exactly.

    They are there until what is returned is destroyed. CPUs choose as they did: only by name do they get to flash.
    """
    kernels = Kernels(importlib.import_module("torch"), capability, key, float32=float32)
    library = kernels.torch.library.Library("aten", "IMPL")
    for name, kernel in {
        "_flash_attention_forward": kernels.flash_forward,
        "_flash_attention_backward": kernels.flash_backward,
        "_scaled_dot_product_flash_attention": kernels.fused_flash_forward,
        "_scaled_dot_product_flash_attention_backward": kernels.fused_flash_backward,
        "_scaled_dot_product_efficient_attention": kernels.efficient_forward,
        "_scaled_dot_product_efficient_attention_backward": kernels.efficient_backward,
    }.items():
        library.impl(name, kernel, key)
    if key == "CUDA":
        for each in (key, "AutogradCUDA"):
            library.impl("scaled_dot_product_attention", kernels.attend, each)
    return library


class Kernels:
    """The parameters of their methods are those of the operators."""

    def __init__(self, torch: Any, capability: tuple[int, ...], key: str, *, float32: bool) -> None:
        self.torch, self.capability, self.key, self.float32 = torch, capability, key, float32

    # -- what scaled_dot_product_attention chooses from ----------------------------------------------------------------

    def attend(self, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
               is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Any:  # fmt: skip
        """What torch composes of them, and by which rules."""
        aten, pad = self.torch.ops.aten, self.torch.nn.functional.pad
        width, trained = query.shape[-1], self.torch.is_grad_enabled() and query.requires_grad
        fusible = dropout_p == 0 and query.dim() == 4
        if fusible and attn_mask is None and self.refuse_flash(query, value, trained=trained) is None:
            # As torch pads them.
            given = [pad(each, (0, -width % STEP)) for each in (query, key, value)]
            scale = width**-0.5 if scale is None else scale
            return aten._scaled_dot_product_flash_attention(*given, 0.0, is_causal, scale=scale)[0][..., :width]
        if fusible and query.shape[1] == key.shape[1] and self.refuse_efficient(query, value) is None:
            if attn_mask is not None:
                attn_mask = self.add_up(attn_mask, query).expand(*query.shape[:3], key.shape[2])
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, trained, 0.0, is_causal, scale=scale
            )[0]
        return self.define((query, key, value), self.add_up(attn_mask, query), is_causal, scale, dropout_p)

    def fused_flash_forward(self, query: Any, key: Any, value: Any, dropout: float = 0.0, causal: bool = False,
                            debug: bool = False, *, scale: float | None = None) -> Any:  # fmt: skip
        self.require_flash(query, value)
        lse, *state = self.make_extras(query, query.shape[:3])
        out = self.define((query, key, value), None, causal, scale)
        return out, lse, None, None, query.shape[2], key.shape[2], *state

    def fused_flash_backward(self, slope: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, ends_q: Any,
                             ends_k: Any, max_q: int, max_k: int, dropout: float, causal: bool, state: Any,
                             unused: Any, *, scale: float | None = None) -> Any:  # fmt: skip
        return self.differentiate(lambda *three: self.define(three, None, causal, scale), slope, query, key, value)

    def efficient_forward(self, query: Any, key: Any, value: Any, mask: Any, keep_lse: bool, dropout: float = 0.0,
                          causal: bool = False, *, scale: float | None = None) -> Any:  # fmt: skip
        refusal = self.refuse_efficient(query, value)
        if refusal or query.shape[1] != key.shape[1]:
            raise RuntimeError(refusal or "efficient attention has no grouped heads")
        rows, heads, length, _ = query.shape
        shape = (rows, heads, -(-length // 32) * 32 if keep_lse else 0)
        # The state of the generator is on the host.
        state = self.torch.zeros((), dtype=self.torch.int64)
        out = self.define((query, key, value), mask, causal, scale)
        return out, query.new_zeros(shape, dtype=self.torch.float32), state, state.clone()

    def efficient_backward(self, slope: Any, query: Any, key: Any, value: Any, mask: Any, out: Any, lse: Any, seed: Any,
                           offset: Any, dropout: float, needed: Any, causal: bool = False, *,
                           scale: float | None = None) -> Any:  # fmt: skip
        found = self.differentiate(lambda *three: self.define(three, mask, causal, scale), slope, query, key, value)
        return *found, None

    # -- documents end to end: torch.nn.attention.varlen ---------------------------------------------------------------

    def flash_forward(self, query: Any, key: Any, value: Any, ends_q: Any, ends_k: Any, max_q: int, max_k: int,
                      dropout: float, causal: bool, debug: bool, *, scale: float | None = None,
                      window_size_left: int | None = None, window_size_right: int | None = None,
                      **unused: Any) -> Any:  # fmt: skip
        self.require_flash(query, value)
        given = (self.read_ends(ends_q, query, max_q), causal, scale, window_size_left, window_size_right)
        return self.attend_documents((query, key, value), *given), *self.make_extras(
            query, (query.shape[1], len(query))
        )

    def flash_backward(self, slope: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, ends_q: Any, ends_k: Any,
                       max_q: int, max_k: int, dropout: float, causal: bool, state: Any, unused: Any, *,
                       scale: float | None = None, window_size_left: int | None = None,
                       window_size_right: int | None = None) -> Any:  # fmt: skip
        given = (self.read_ends(ends_q, query, max_q), causal, scale, window_size_left, window_size_right)
        return self.differentiate(lambda *three: self.attend_documents(three, *given), slope, query, key, value)

    def attend_documents(self, three: Any, ends: list[int], causal: bool, scale: float | None,
                         left: int | None, right: int | None) -> Any:  # fmt: skip
        parts, query = [], three[0]
        for begin, end in pairwise(ends):
            length, mask = end - begin, None
            if not causal:
                place = self.torch.arange(length, device=query.device)
                back = place[:, None] - place
                least, most = (length if each is None or each < 0 else each for each in (right, left))
                mask = self.add_up((back >= -least) & (back <= most), query)
            one = [each[begin:end].transpose(0, 1)[None] for each in three]
            parts.append(self.define(one, mask, causal, scale)[0].transpose(0, 1))
        return self.torch.cat(parts)

    def read_ends(self, ends: Any, query: Any, most: int) -> list[int]:
        """On the host, as a kernel reads them on its device: without a wait."""
        if ends.dtype != self.torch.int32 or not ends.is_contiguous() or ends.device != query.device:
            raise RuntimeError("cu_seqlens must be contiguous int32 on the device of the queries")
        read = list((ctypes.c_int32 * ends.numel()).from_address(ends.data_ptr()))
        lengths = [end - begin for begin, end in pairwise(read)]
        # The real kernel would compute with what is in the memory behind, or leave rows as they were allocated.
        if read[0] or read[-1] != len(query) or min(lengths) < 0 or max(lengths) > most:
            raise RuntimeError(f"not the ends of documents of up to {most} in {len(query)} tokens: {read}")
        return read

    # -- what the real ones refuse -------------------------------------------------------------------------------------

    def refuse_flash(self, query: Any, value: Any, *, trained: bool) -> str | None:
        width = query.shape[-1]
        if self.capability < (8, 0):
            return "FlashAttention only supports Ampere GPUs or newer."
        if query.itemsize != 2 and not self.float32:
            return "FlashAttention only support fp16 and bf16 data type"
        if width > WIDEST or width != value.shape[-1]:
            return "FlashAttention forward only supports head dimension at most 256, alike for queries and values"
        if trained and 192 < width <= 224 and self.capability[0] in {8, 12} and self.capability != (8, 0):
            return "FlashAttention backward for head dim > 192 requires A100/A800 or H100/H800"
        return None

    def require_flash(self, query: Any, value: Any) -> None:
        refusal = self.refuse_flash(query, value, trained=False)
        if refusal or query.shape[-1] % STEP:
            raise RuntimeError(refusal or "head_size must be a multiple of 8, this is ensured by padding!")

    def refuse_efficient(self, query: Any, value: Any) -> str | None:
        if query.dtype == self.torch.bfloat16 and self.capability < (8, 0):
            return "Expected query dtype Half or Float: bfloat16 needs Ampere"
        if query.shape[-1] % (16 // query.itemsize) or value.shape[-1] % (16 // query.itemsize):
            return "Mem efficient attention requires last dimension of inputs to be divisible by 16 bytes"
        return None

    # -- what all of them compute --------------------------------------------------------------------------------------

    def define(self, three: Any, mask: Any, causal: bool, scale: float | None,
               dropout: float = 0.0) -> Any:  # fmt: skip
        query, key, value = three
        compute = self.torch.ops.aten._scaled_dot_product_attention_math
        gqa = query.shape[-3] != key.shape[-3]
        return compute(query, key, value, mask, dropout, causal, None, scale=scale, enable_gqa=gqa)[0]

    def add_up(self, mask: Any, query: Any) -> Any:
        """What is added to the scores for a mask of booleans."""
        if mask is None or mask.dtype != self.torch.bool:
            return mask
        return self.torch.zeros((), dtype=query.dtype, device=query.device).where(mask, -self.torch.inf)

    def differentiate(self, compute: Compute, slope: Any, *inputs: Any) -> Any:
        """The gradients of a second forward, which autograd follows, although a kernel runs below it."""
        raw = self.torch._C
        keys = raw._dispatch_tls_local_exclude_set()
        for each in (f"Autograd{self.key}", "ADInplaceOrView"):
            keys = keys.remove(getattr(raw.DispatchKey, each))
        with raw._ForceDispatchKeyGuard(raw._dispatch_tls_local_include_set(), keys), self.torch.enable_grad():
            copies = [each.detach().requires_grad_() for each in inputs]
            return self.torch.autograd.grad(compute(*copies), copies, slope)

    def make_extras(self, query: Any, shape: Any) -> tuple[Any, ...]:
        """What flash returns beside its output: log of the sums, state of the generator, two that are unused."""
        empty, kind = query.new_empty(0), self.torch
        return query.new_zeros(shape, dtype=kind.float32), query.new_zeros(2, dtype=kind.uint64), empty, empty
