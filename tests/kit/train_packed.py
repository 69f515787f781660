"""Forwards of packed rows beside those of their documents, and masks beside transformers' own."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo
from simulated_gpus import attention_kernels
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import create_masks_for_generate

from aboard.trainer.data.sampling.packed_sequences import PackedSequence
from aboard.trainer.model.attention_masks import build_masks
from aboard.trainer.model.compile_layers import compile_layers
from aboard.trainer.model.varlen_attention import VARLEN, register_varlen

LENGTHS = ((5, 19, 9), (30,), (2, 2, 2, 25))


def rows() -> list[PackedSequence]:
    """Rows of several documents, longer than the window, all but their first tokens supervised."""
    draw = np.random.default_rng(3)
    made = []
    for lengths in LENGTHS:
        ids = draw.integers(3, 260, sum(lengths)).astype(np.uint32)
        mask = np.ones(len(ids), np.bool_)
        mask[np.cumsum((0, *lengths[:-1]))] = False
        made.append(
            PackedSequence(
                ids=ids, mask=mask, lengths=lengths, documents=(0,) * len(lengths), supervised=int(mask.sum())
            )
        )
    return made


def apart(folder: Path, attention: str, keeps: str) -> float:
    """The largest difference between logits of packed rows and those of their documents, one by one."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
    plain = [_separate(model, row) for row in rows()]
    how = build_masks(model, torch.float32)
    made = how.collate()
    micro = type(made)(flat=made.flat, keeps=keeps)(rows())  # type: ignore[arg-type]
    with torch.no_grad():
        logits = model(**how.inputs(micro)).logits
    worst = 0.0
    for place, row in enumerate(rows()):
        found = logits[place][micro.labels[place] != -100]
        wanted = plain[place][torch.from_numpy(np.flatnonzero(row.mask) - 1)]
        assert found.shape == wanted.shape
        worst = max(worst, float((found - wanted).abs().max()))
    return worst


def flat_apart(folder: Path) -> float:
    """As `apart`, for rows that are laid end to end, by a stand-in that is given what flash-attn's kernel is given."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    wanted = torch.cat([_separate(model, row)[torch.from_numpy(np.flatnonzero(row.mask) - 1)] for row in rows()])
    AttentionInterface.register("flash_attention_2", _by_ends)
    model.config._attn_implementation_internal = "flash_attention_2"
    return float((_flat_logits(model) - wanted).abs().max())


def half_losses(folder: Path) -> tuple[float, float]:
    """The mean loss in bfloat16, of packed documents by a reference for torch's kernel, and of one document a row."""
    library = attention_kernels.install((9, 0), key="CPU")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
        places = [torch.from_numpy(np.flatnonzero(row.mask)) for row in rows()]
        alone = torch.cat([_separate(model, row)[place - 1] for row, place in zip(rows(), places, strict=True)])
        labels = torch.cat(
            [torch.from_numpy(row.ids.astype(np.int64))[place] for row, place in zip(rows(), places, strict=True)]
        )
        model.set_attn_implementation(register_varlen())
        packed = _flat_logits(model, torch.bfloat16)
    finally:
        library._destroy()
    one, other = (float(torch.nn.functional.cross_entropy(each.float(), labels)) for each in (packed, alone))
    return one, other


def compiled_apart(folder: Path) -> tuple[float, int, int]:
    """Of compiled layers given ends of documents: how far logits are from plain ones, and their graphs and breaks."""
    library = attention_kernels.install((9, 0), key="CPU", float32=True)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        plain, compiled = (_fixed_logits(folder, compiled=compiled) for compiled in (False, True))
    finally:
        library._destroy()
    counters = torch._dynamo.utils.counters
    worst = max(float((one - other).abs().max()) for one, other in zip(plain, compiled, strict=True))
    return worst, counters["stats"]["unique_graphs"], len(counters["graph_break"])


def _fixed_logits(folder: Path, *, compiled: bool) -> list[torch.Tensor]:
    """Of micro-batches with other numbers of documents, each with its backward."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.set_attn_implementation(register_varlen())
    if compiled:
        compile_layers(model, fixed_length=True)
    how = build_masks(model, torch.float32)
    collate, found = how.collate((3, 48)), []
    for taken in ((0, 1, 2), (1, 1, 0), (2, 2, 2), (0,)):
        logits = model(**how.inputs(collate([rows()[each] for each in taken]))).logits
        logits.sum().backward()
        found.append(logits.detach())
    return found


def _flat_logits(model: torch.nn.Module, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    how = build_masks(model, dtype)  # type: ignore[arg-type] # as transformers' types have it
    micro = how.collate()(rows())
    assert micro.input_ids.shape[0] == 1
    with torch.no_grad():
        logits: torch.Tensor = model(**how.inputs(micro)).logits[0]
    return logits


def varlen_apart(folder: Path) -> tuple[float, float, float]:
    """How far torch's kernel, as it is called, is from a plain function: in logits, outputs of a layer, and gradients.

    The kernel is a reference for it, on the CPU and in float32.
    """
    library = attention_kernels.install((9, 0), key="CPU", float32=True)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        wanted = torch.cat([_separate(model, row)[torch.from_numpy(np.flatnonzero(row.mask) - 1)] for row in rows()])
        model.set_attn_implementation(register_varlen())
        logits = float((_flat_logits(model) - wanted).abs().max())
        module = model.model.layers[0].self_attn
        given = _attention_inputs(module)
        ours, plain = (_attend(function, module, given) for function in (AttentionInterface()[VARLEN], _by_ends))
    finally:
        library._destroy()
    outputs, *gradients = (float((one - other).abs().max()) for one, other in zip(ours, plain, strict=True))
    return logits, outputs, max(gradients)


def _attention_inputs(module: Any) -> list[torch.Tensor]:
    """Queries, keys and values of three documents and padding."""
    heads, width = module.config.num_attention_heads, module.head_dim
    draw = torch.Generator().manual_seed(5)
    shapes = (heads, *[heads // module.num_key_value_groups] * 2)
    return [torch.randn(1, count, 48, width, generator=draw) for count in shapes]


def _attend(function: Any, module: Any, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs and gradients."""
    inputs = [each.clone().requires_grad_() for each in given]
    ends = torch.tensor([0, 5, 24, 33, 48], dtype=torch.int32)
    window = getattr(module.config, "sliding_window", None)
    named = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 19, "max_length_k": 19}
    out, _ = function(module, *inputs, None, scaling=module.scaling, sliding_window=window, **named)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), inputs)]


def _by_ends(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    max_length_q: int,
    max_length_k: int,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of each document to itself; the ends are all that it knows of them."""
    assert attention_mask is None
    assert torch.equal(cu_seq_lens_q, cu_seq_lens_k)
    assert max_length_q == max_length_k == int(cu_seq_lens_q.diff().max())
    key, value = (repeat_kv(each, module.num_key_value_groups) for each in (key, value))
    made = []
    for begin, end in pairwise(cu_seq_lens_q.tolist()):
        scores = query[0, :, begin:end] @ key[0, :, begin:end].transpose(1, 2) * scaling
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        place = torch.arange(end - begin)
        seen = (place[:, None] >= place) & (place > place[:, None] - (sliding_window or end))
        made.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value[0, :, begin:end])
    return torch.cat(made, 1).transpose(0, 1)[None], None


def _separate(model: torch.nn.Module, row: PackedSequence) -> torch.Tensor:
    with torch.no_grad():
        ids = torch.from_numpy(row.ids.astype(np.int64)).split(list(row.lengths))
        return torch.cat([model(input_ids=each[None], use_cache=False).logits[0] for each in ids])


def masks_alike(folder: Path, attention: str) -> bool:
    """Whether our masks are those that transformers makes of the same rows by itself."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    embeds = torch.empty(len(LENGTHS), 48, 1)
    how = build_masks(model, torch.float32)
    micro = how.collate()(rows())
    ours = how.inputs(micro)["attention_mask"]
    model.set_attn_implementation(attention)
    length = micro.input_ids.shape[1]
    theirs = create_masks_for_generate(model.config, embeds[:, :length], None, None, micro.position_ids)
    if not isinstance(theirs, dict):
        ours, theirs = {"": ours}, {"": theirs}
    return ours.keys() == theirs.keys() and all(torch.equal(ours[kind], _add_up(theirs[kind])) for kind in ours)


def _add_up(mask: torch.Tensor) -> torch.Tensor:
    """What sdpa adds to the scores for a mask of booleans, which transformers gives to it."""
    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros(()).where(mask, torch.finfo(torch.float32).min)
