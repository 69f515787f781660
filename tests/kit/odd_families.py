"""Tiny models of families that take other things than most: no positions, a state, biases for distances."""

from typing import Any

import torch
from train_packed import rows
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from aboard.diagnoses import AboardError
from aboard.trainer.data.sampling.packed_sequences import PackedSequence
from aboard.trainer.model.attention_masks import build_masks
from aboard.trainer.model.packing_support import find_packing_obstacle

_SHAPE: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
_WIDE: dict[str, Any] = {"intermediate_size": 64}
PACK: dict[str, dict[str, Any]] = {
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "gpt_neox": _WIDE,
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "falcon": {},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
}
PACK_NOT: dict[str, dict[str, Any]] = {
    "bloom": {"n_layer": 2, "n_head": 4},
    "falcon with alibi": {"alibi": True},
    "openai-gpt": _GPT,
    "bart": {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64},
    "mamba": {},
    "rwkv": {},
    # Every third layer attends, and transformers' cache wants at least one that does.
    "recurrent_gemma": {**_WIDE, "num_hidden_layers": 3, "lru_width": 32, "num_key_value_heads": 1, "head_dim": 8},
}


def odd(family: str) -> PreTrainedModel:
    """Built on the spot; nothing is dropped, so that two forwards are alike."""
    torch.manual_seed(7)
    config = AutoConfig.for_model(family.partition(" ")[0], **{**_SHAPE, **(PACK | PACK_NOT)[family]})
    for name in vars(config):
        if "drop" in name and isinstance(getattr(config, name), float):
            setattr(config, name, 0.0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return model


def difference(family: str, *, packed: bool) -> float | str:
    """Between the logits that our inputs give and those of each document alone; or the code that it is refused with."""
    model = odd(family)
    given = rows() if packed else [one for row in rows() for one in _documents(row)]
    with torch.no_grad():
        alone = [
            model(input_ids=torch.from_numpy(one.ids.astype("int64"))[None]).logits[0, :-1]
            for row in given
            for one in _documents(row)
        ]
        how = build_masks(model, torch.float32)
        micro = how.collate()(given)
        try:
            logits = model(**how.inputs(micro)).logits
        except AboardError as error:
            return error.code
    return float((logits[micro.labels != -100] - torch.cat(alone)).abs().max())


def _documents(row: PackedSequence) -> list[PackedSequence]:
    parts = torch.from_numpy(row.ids.astype("int64")).split(list(row.lengths))
    masked = torch.from_numpy(row.mask).split(list(row.lengths))
    return [
        PackedSequence(
            ids=ids.numpy().astype("uint32"),
            mask=mask.numpy(),
            lengths=(len(ids),),
            documents=(0,),
            supervised=len(ids) - 1,
        )
        for ids, mask in zip(parts, masked, strict=True)
    ]


def reasons() -> dict[str, str | None]:
    return {family: find_packing_obstacle(odd(family)) for family in (*PACK, *PACK_NOT)}
