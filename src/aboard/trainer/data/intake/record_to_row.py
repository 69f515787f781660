"""Converts a record to a row of its format.

messages and sharegpt are chats. alpaca is a pair in Stanford's wording (below), and a chat if the encoder has a
template. prompt-completion is a pair with its strings unchanged, or a chat if both are lists of messages; the loss is
on the completion's. text is text, tokens are tokens.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from aboard.trainer.data.intake.chat_messages import (
    InvalidRowError,
    parse_openai_turns,
    parse_sharegpt_turns,
    parse_tools,
    require_text,
)
from aboard.trainer.data.intake.jsonl_and_text import Record, describe_json_type
from aboard.trainer.data.intake.row_formats import FormatName, RowFormat
from aboard.trainer.data.rows import ChatMessage, DataRow, Ids, InvalidRow, Mask, RowLocation

ALPACA_PROMPT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)
ALPACA_INPUT_PROMPT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
_IGNORE_INDEX = -100  # torch's ignore_index: labels mark tokens without a loss with it
_MAX_TOKEN = np.iinfo(np.uint32).max


def build_row(record: Record, row_format: RowFormat) -> DataRow | InvalidRow:
    """The record as a row; one that doesn't fit the format is an InvalidRow with the reason."""
    where, fields = record
    try:
        return _ROW_BUILDERS[row_format.name](where, fields, row_format.columns)
    except InvalidRowError as error:
        return InvalidRow(location=where, code=error.code, why=error.why)


def _build_alpaca(location: RowLocation, fields: dict[str, Any], _: tuple[str, ...]) -> DataRow:
    instruction = require_text(_require_column(fields, "instruction"), "instruction")
    extra = require_text(fields.get("input") or "", "input")
    output = require_text(_require_column(fields, "output"), "output")
    system = require_text(fields.get("system") or "", "system")
    if fields.get("history"):
        raise InvalidRowError(
            "row-type", "an alpaca row with a history, which is not supported; write the turns as messages"
        )
    if not (instruction or extra or output):
        raise InvalidRowError("row-empty", "instruction, input and output are empty")
    # Not str.format: an instruction may contain braces.
    head, tail = ALPACA_INPUT_PROMPT.split("{input}") if extra else (ALPACA_PROMPT, "")
    instructions = head.replace("{instruction}", instruction, 1) + extra + tail
    asked = f"{instruction}\n\n{extra}" if instruction and extra else instruction or extra
    question: ChatMessage = {"role": "user", "content": asked}
    answer: ChatMessage = {"role": "assistant", "content": output}
    start: tuple[ChatMessage, ...] = ({"role": "system", "content": system},) if system else ()
    prompt = f"{system}\n\n{instructions}" if system else instructions
    return DataRow(
        location=location, kind="pair", prompt=prompt, completion=output, messages=(*start, question, answer)
    )


def _build_sharegpt(location: RowLocation, fields: dict[str, Any], columns: tuple[str, ...]) -> DataRow:
    turns = _require_column(fields, columns[0])
    messages = parse_sharegpt_turns(turns, columns[0], fields.get("system"))
    return DataRow(location=location, kind="chat", messages=messages, tools=parse_tools(fields.get("tools")))


def _build_messages(location: RowLocation, fields: dict[str, Any], columns: tuple[str, ...]) -> DataRow:
    messages, trains = parse_openai_turns(_require_column(fields, columns[0]), columns[0])
    return DataRow(
        location=location, kind="chat", messages=messages, trains=trains, tools=parse_tools(fields.get("tools"))
    )


def _build_pair(location: RowLocation, fields: dict[str, Any], _: tuple[str, ...]) -> DataRow:
    prompt, completion = _require_column(fields, "prompt"), _require_column(fields, "completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        prompt_messages, _weights = parse_openai_turns(prompt, "prompt")
        completion_messages, weights = parse_openai_turns(completion, "completion")
        trains = (False,) * len(prompt_messages) + (weights or (True,) * len(completion_messages))
        row_tools = parse_tools(fields.get("tools"))
        return DataRow(
            location=location,
            kind="chat",
            messages=(*prompt_messages, *completion_messages),
            trains=trains,
            tools=row_tools,
        )
    prompt, completion = require_text(prompt, "prompt"), require_text(completion, "completion")
    if not prompt and not completion:
        raise InvalidRowError("row-empty", "prompt and completion are empty")
    return DataRow(location=location, kind="pair", prompt=prompt, completion=completion)


def _build_text(location: RowLocation, fields: dict[str, Any], columns: tuple[str, ...]) -> DataRow:
    content = require_text(_require_column(fields, columns[0]), columns[0])
    if not content.strip():
        raise InvalidRowError("row-empty", f"{columns[0]} is empty")
    return DataRow(location=location, kind="text", text=content)


def _build_tokens(location: RowLocation, fields: dict[str, Any], _: tuple[str, ...]) -> DataRow:
    ids = _parse_numbers(_require_column(fields, "input_ids"), "input_ids")
    mask: Mask | None = None
    if fields.get("labels") is not None:
        labels = _parse_numbers(fields["labels"], "labels", len(ids))
        mask = labels != _IGNORE_INDEX
        if not np.array_equal(labels[mask], ids[mask]):
            raise InvalidRowError(
                "row-tokens", "labels differ from input_ids; don't shift them, only replace tokens with -100"
            )
    elif fields.get("loss_mask") is not None:
        mask = _parse_numbers(fields["loss_mask"], "loss_mask", len(ids)) != 0
    if fields.get("attention_mask") is not None:
        attended = _parse_numbers(fields["attention_mask"], "attention_mask", len(ids)) != 0
        ids, mask = ids[attended], None if mask is None else mask[attended]
    if not len(ids):
        raise InvalidRowError("row-empty", "input_ids is empty")
    if ids.min() < 0 or ids.max() > _MAX_TOKEN:
        raise InvalidRowError("row-tokens", f"{int(ids.min() if ids.min() < 0 else ids.max())} is not a token id")
    token_ids: Ids = ids.astype(np.uint32)
    return DataRow(location=location, kind="tokens", ids=token_ids, mask=mask)


_ROW_BUILDERS: dict[FormatName, Callable[[RowLocation, dict[str, Any], tuple[str, ...]], DataRow]] = {
    "alpaca": _build_alpaca,
    "sharegpt": _build_sharegpt,
    "messages": _build_messages,
    "prompt-completion": _build_pair,
    "text": _build_text,
    "tokens": _build_tokens,
}


def _require_column(fields: dict[str, Any], column: str) -> Any:
    value = fields.get(column)
    if value is None:
        columns = ", ".join(list(fields)[:10])
        raise InvalidRowError("row-columns", f"no column '{column}'; the row has {columns or 'no columns'}")
    return value


def _parse_numbers(value: object, name: str, length: int | None = None) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    numbers = value if isinstance(value, np.ndarray) else None
    if isinstance(value, list):
        try:
            numbers = np.array(value) if value else np.empty(0, np.int64)
        except (ValueError, OverflowError):  # a list in the list
            numbers = None
    if numbers is None or numbers.ndim != 1 or numbers.dtype.kind not in "iub":
        raise InvalidRowError(
            "row-type", f"{name} is {describe_json_type(value)}, where a list of whole numbers was expected"
        )
    if length is not None and len(numbers) != length:
        raise InvalidRowError("row-tokens", f"{name} has {len(numbers)} numbers, but input_ids has {length}")
    if numbers.dtype == np.uint64 and len(numbers) and numbers.max() > np.iinfo(np.int64).max:
        raise InvalidRowError("row-tokens", f"{name} contains {int(numbers.max())}, which is not a token id")
    return numbers.astype(np.int64, copy=False)
