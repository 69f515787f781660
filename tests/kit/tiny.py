"""Creates tiny random models of several families, and prepared data for them."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aboard.core.plan.training_settings import DataPart
from aboard.trainer.data.intake.row_formats import RowFormat
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
from aboard.trainer.data.rows import DataRow, EncodedRow, InvalidRow
from aboard.trainer.data.sampling.packed_sequences import Packing
from aboard.trainer.data.tokenize_workers.prepare_data import PreparationSource, prepare_data

# Those that the loop is proven with: tied and not, with a window of 8 tokens in all layers (mistral) or in every other.
FAMILIES = ("llama", "qwen2", "gemma2", "mistral")
VOCABULARY = 264
WINDOW = 8
MAX_LENGTH = 48
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Large enough that no gradient is lost in the noise of a first step.
    "initializer_range": 0.2,
}
_OWN: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False},
    "gemma2": {"sliding_window": WINDOW, "head_dim": 8, "query_pre_attn_scalar": 8},
    "mistral": {"sliding_window": WINDOW, "tie_word_embeddings": False},
    # Its forward takes no position ids, and a mask of two dimensions only.
    "bloom": {"n_layer": 2, "n_head": 4},
}


def tiny_model(folder: Path, family: str = "llama", **changed: Any) -> str:
    """A model of this family with random weights, saved as people have them; the same ones each time."""
    import torch  # noqa: PLC0415 - who only wants the data needs no torch
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - as above

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        config = AutoConfig.for_model(family, **{**_SHAPE, **_OWN[family], **changed})
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.save_pretrained(folder)
    return str(folder)


def dropping_model(folder: Path) -> str:
    """The untied one with dropout."""
    return tiny_model(folder, "qwen2", attention_dropout=0.2)


def tiny_data(
    folder: Path,
    packing: Packing = "packed",
    *,
    documents: int = 160,
    max_length: int = MAX_LENGTH,
    name: str = "tiny",
    weight: float | None = None,
    seed: int = 1,
    added: Sequence[str] = (),
) -> DataPart:
    """Documents of 3 to 40 tokens, of which the answers are supervised: from one token to most of them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    draw = random.Random(seed)  # noqa: S311 - no secrets

    def words(letters: str, most: int) -> str:
        return "".join(draw.choices(letters, k=draw.randint(1, most)))

    rows = [f"{words('abcdefgh ', 25)}={words('stuvw', 14)}" for _ in range(documents)]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in (*rows, *added)), "utf-8")
    form = RowFormat(name="text", why="given", columns=("text",))
    source = PreparationSource(form=form, chunks=tuple(list_source_chunks(SourceSpec(path=str(path)))))
    made = prepare_data([source], Answers(), folder / "cache", max_length=max_length, packing=packing, workers=1)
    return DataPart(name=name, shards=str(made.shards.folder), bins=str(made.bins.folder), weight=weight)


@dataclass(frozen=True)
class Size:
    size: int = VOCABULARY


@dataclass(frozen=True)
class Answers:
    """Each byte is a token; those behind the equals sign are supervised."""

    identity: str = "answers"
    vocabulary: Size = Size()

    def __call__(self, rows: Sequence[DataRow]) -> list[EncodedRow | InvalidRow]:
        found: list[EncodedRow | InvalidRow] = []
        for row in rows:
            ids = np.frombuffer((row.text or "").encode(), np.uint8).astype(np.uint32)
            mask = np.cumsum(ids == ord("=")) > 0
            mask[:-1] &= ids[:-1] != ord("=")
            found.append(EncodedRow(location=row.location, ids=ids, mask=mask))
        return found
