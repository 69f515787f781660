"""Whether a model can separate the documents of one packed row.

Most can, with position ids and a four-dimensional mask. In others, packed rows would either crash deep in a step
(bloom) or silently train on documents that attend to each other (rwkv, xlstm, recurrent_gemma).
"""

import inspect
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from aboard.diagnoses import AboardError, TrainerError
from aboard.trainer.diagnoses import training

FULL, WINDOWED = "full_attention", "sliding_attention"
# They have and need no position ids: they use only distances between tokens.
_RELATIVE = {"mpt"}
# They accept two-dimensional masks only, like all models that derive ALiBi's biases from the mask.
_ONE_ROW = {"openai-gpt"}


def has_position_ids(model: PreTrainedModel) -> bool:
    return "position_ids" in inspect.signature(inspect.unwrap(type(model).forward)).parameters


def find_packing_obstacle(model: PreTrainedModel) -> str | None:
    """Why documents of one row can't be separated; None if they can."""
    config: Any = model.config.get_text_config()
    if model._is_stateful or any(isinstance(part, nn.Conv1d) for part in model.modules()):  # noqa: SLF001 - its only name
        return "it has recurrent layers that carry state from one document to the next"
    if not has_position_ids(model) and config.model_type not in _RELATIVE:
        return "its forward method takes no position_ids, so a second document would not start at position 0"
    if getattr(config, "alibi", False) or config.model_type in _ONE_ROW:
        return "its attention mask has one row for all tokens, so it can't separate documents"
    if not set(getattr(config, "layer_types", None) or ()) <= {FULL, WINDOWED}:
        return "it has a kind of layer for which no mask is supported"
    if getattr(config, "sliding_window", None) is None and getattr(config, "attention_chunk_size", None) is not None:
        return "its attention is chunked by row position, regardless of documents"
    return None


def build_packing_error(why: str) -> AboardError:
    """The error of a run with packed data, before its first step."""
    seen = f"packed documents would attend to each other in this model: {why}"
    return TrainerError(training.PACKING_UNKNOWN, seen)
