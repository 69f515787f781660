"""A record to a row, as its format reads it.

What each format becomes: messages and sharegpt are chats. alpaca is a pair in Stanford's words (below), and a chat
where the encoder has a template. prompt-completion is a pair, its strings taken as they are, or a chat where both are
lists of messages; the loss is on the completion's. text is text, tokens are tokens.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from aboard.data.intake.conversation import Misshapen, openai_turns, sharegpt_turns, text, tools
from aboard.data.intake.formats import Format, Name
from aboard.data.intake.lines import Record, json_type
from aboard.data.rows import Broken, Ids, Mask, Message, Row, Where

ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)
ALPACA_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
_IGNORED = -100  # torch's ignore_index, with which labels mark what is not trained
_LARGEST = np.iinfo(np.uint32).max


def shape(record: Record, form: Format) -> Row | Broken:
    """The record as a row; one that doesn't fit the format is a Broken that says in which way."""
    where, fields = record
    try:
        return _SHAPES[form.name](where, fields, form.columns)
    except Misshapen as odd:
        return Broken(where=where, code=odd.code, why=odd.why)


def _alpaca(where: Where, fields: dict[str, Any], _: tuple[str, ...]) -> Row:
    instruction = text(_needed(fields, "instruction"), "instruction")
    extra = text(fields.get("input") or "", "input")
    output = text(_needed(fields, "output"), "output")
    system = text(fields.get("system") or "", "system")
    if fields.get("history"):
        raise Misshapen("row-type", "an alpaca row with a history, which is not read; write the turns as messages")
    if not (instruction or extra or output):
        raise Misshapen("row-empty", "instruction, input and output are empty")
    # Not str.format: an instruction may have braces.
    words = (ALPACA_INPUT if extra else ALPACA).replace("{instruction}", instruction, 1)
    if extra:
        head, tail = ALPACA_INPUT.split("{input}")
        words = head.replace("{instruction}", instruction, 1) + extra + tail
    asked: Message = {
        "role": "user",
        "content": f"{instruction}\n\n{extra}" if instruction and extra else instruction or extra,
    }
    answer: Message = {"role": "assistant", "content": output}
    start: tuple[Message, ...] = ({"role": "system", "content": system},) if system else ()
    prompt = f"{system}\n\n{words}" if system else words
    return Row(where=where, kind="pair", prompt=prompt, completion=output, messages=(*start, asked, answer))


def _sharegpt(where: Where, fields: dict[str, Any], columns: tuple[str, ...]) -> Row:
    turns = _needed(fields, columns[0])
    messages = sharegpt_turns(turns, columns[0], fields.get("system"))
    return Row(where=where, kind="chat", messages=messages, tools=tools(fields.get("tools")))


def _messages(where: Where, fields: dict[str, Any], columns: tuple[str, ...]) -> Row:
    messages, trains = openai_turns(_needed(fields, columns[0]), columns[0])
    return Row(where=where, kind="chat", messages=messages, trains=trains, tools=tools(fields.get("tools")))


def _pair(where: Where, fields: dict[str, Any], _: tuple[str, ...]) -> Row:
    prompt, completion = _needed(fields, "prompt"), _needed(fields, "completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        asked, _weights = openai_turns(prompt, "prompt")
        answered, weights = openai_turns(completion, "completion")
        trains = (False,) * len(asked) + (weights or (True,) * len(answered))
        found = tools(fields.get("tools"))
        return Row(where=where, kind="chat", messages=(*asked, *answered), trains=trains, tools=found)
    prompt, completion = text(prompt, "prompt"), text(completion, "completion")
    if not prompt and not completion:
        raise Misshapen("row-empty", "prompt and completion are empty")
    return Row(where=where, kind="pair", prompt=prompt, completion=completion)


def _text(where: Where, fields: dict[str, Any], columns: tuple[str, ...]) -> Row:
    found = text(_needed(fields, columns[0]), columns[0])
    if not found.strip():
        raise Misshapen("row-empty", f"{columns[0]} is empty")
    return Row(where=where, kind="text", text=found)


def _tokens(where: Where, fields: dict[str, Any], _: tuple[str, ...]) -> Row:
    ids = _numbers(_needed(fields, "input_ids"), "input_ids")
    mask: Mask | None = None
    if fields.get("labels") is not None:
        labels = _numbers(fields["labels"], "labels", len(ids))
        mask = labels != _IGNORED
        if not np.array_equal(labels[mask], ids[mask]):
            raise Misshapen("row-tokens", "labels differ from input_ids; they are not to be shifted, only -100 put in")
    elif fields.get("loss_mask") is not None:
        mask = _numbers(fields["loss_mask"], "loss_mask", len(ids)) != 0
    if fields.get("attention_mask") is not None:
        seen = _numbers(fields["attention_mask"], "attention_mask", len(ids)) != 0
        ids, mask = ids[seen], None if mask is None else mask[seen]
    if not len(ids):
        raise Misshapen("row-empty", "input_ids is empty")
    if ids.min() < 0 or ids.max() > _LARGEST:
        raise Misshapen("row-tokens", f"{int(ids.min() if ids.min() < 0 else ids.max())} is no token id")
    found: Ids = ids.astype(np.uint32)
    return Row(where=where, kind="tokens", ids=found, mask=mask)


_SHAPES: dict[Name, Callable[[Where, dict[str, Any], tuple[str, ...]], Row]] = {
    "alpaca": _alpaca,
    "sharegpt": _sharegpt,
    "messages": _messages,
    "prompt-completion": _pair,
    "text": _text,
    "tokens": _tokens,
}


def _needed(fields: dict[str, Any], column: str) -> Any:
    value = fields.get(column)
    if value is None:
        there = ", ".join(list(fields)[:10])
        raise Misshapen("row-columns", f"no column '{column}'; the row has {there or 'no columns'}")
    return value


def _numbers(value: object, name: str, length: int | None = None) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    found = value if isinstance(value, np.ndarray) else None
    if isinstance(value, list):
        try:
            found = np.array(value) if value else np.empty(0, np.int64)
        except (ValueError, OverflowError):  # a list in the list
            found = None
    if found is None or found.ndim != 1 or found.dtype.kind not in "iub":
        raise Misshapen("row-type", f"{name} is {json_type(value)}, where a list of whole numbers was expected")
    if length is not None and len(found) != length:
        raise Misshapen("row-tokens", f"{name} has {len(found)} numbers, input_ids {length}")
    if found.dtype == np.uint64 and len(found) and found.max() > np.iinfo(np.int64).max:
        raise Misshapen("row-tokens", f"{name} has {int(found.max())}, which is no token id")
    return found.astype(np.int64, copy=False)
