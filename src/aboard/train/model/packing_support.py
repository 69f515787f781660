"""Whether a model can be told which tokens of a row belong together, so that documents of one row stay apart.

Most can: by position ids and a mask of four dimensions. Where one can't, packed rows would either crash it deep in a
step (bloom) or train it, in silence, on documents that see each other (rwkv, xlstm, recurrent_gemma).
"""

import inspect
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from aboard.diagnoses import AboardError
from aboard.diagnoses.trainer import training

FULL, WINDOWED = "full_attention", "sliding_attention"
# They have no position ids, and need none: how far apart two tokens are is all that they know of positions.
_RELATIVE = {"mpt"}
# They take a mask of two dimensions only, as all do that make ALiBi's biases of it.
_ONE_ROW = {"openai-gpt"}


def has_position_ids(model: PreTrainedModel) -> bool:
    return "position_ids" in inspect.signature(inspect.unwrap(type(model).forward)).parameters


def find_packing_obstacle(model: PreTrainedModel) -> str | None:
    """What keeps documents of one row from being kept apart; None where nothing does."""
    config: Any = model.config.get_text_config()
    if model._is_stateful or any(isinstance(part, nn.Conv1d) for part in model.modules()):  # noqa: SLF001 - its only name
        return "it has layers that carry a state from token to token, also from one document to the next"
    if not has_position_ids(model) and config.model_type not in _RELATIVE:
        return "its forward takes no position_ids, so that a second document would not begin at position 0"
    if getattr(config, "alibi", False) or config.model_type in _ONE_ROW:
        return "its attention mask has one row for all tokens, and no room for several documents"
    if not set(getattr(config, "layer_types", None) or ()) <= {FULL, WINDOWED}:
        return "it has layers of a kind that we know no mask for"
    if getattr(config, "sliding_window", None) is None and getattr(config, "attention_chunk_size", None) is not None:
        return "its attention goes by chunks of the row, whatever documents lie in it"
    return None


def build_packing_error(why: str) -> AboardError:
    """What a run with packed data ends with, before its first step."""
    seen = f"documents of one sequence would see each other in this model: {why}"
    return AboardError(training.PACKING_UNKNOWN, seen)
