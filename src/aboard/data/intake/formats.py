"""The formats that rows come in, and telling which one a source has by its columns."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from aboard.core.words import did_you_mean, visible
from aboard.diagnoses import AboardError, data_quality
from aboard.lazy import dataclass

Name = Literal["alpaca", "sharegpt", "messages", "prompt-completion", "text", "tokens"]
NAMES: tuple[Name, ...] = get_args(Name)

_CONVERSATIONS = ("messages", "conversations", "conversation")
_NEEDS = {
    "alpaca": "instruction, output (and input, system)",
    "sharegpt": "conversations: [{from, value}, …]",
    "messages": "messages: [{role, content}, …] (and tools)",
    "prompt-completion": "prompt, completion",
    "text": "text, or the one that text_column: names",
    "tokens": "input_ids (and labels, loss_mask or attention_mask)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """How a record is read: the format's name, why it is believed to be this one, and the columns that it takes."""

    name: Name
    why: str
    columns: tuple[str, ...]


def recognise(
    records: Sequence[Mapping[str, Any]], *, given: str | None = None, text_column: str | None = None
) -> Format:
    """The format of a source by its first records; raises when it could be several or none, and says how to choose."""
    if given is None and text_column is not None:
        given = "text"
    if given is not None:
        return _given(records, given, text_column)
    found = _candidates(records)
    if len(found) > 1:
        seen = f"the rows could be {' or '.join(f'{form.name} ({form.why})' for form in found)}"
        formats = " or ".join(f"format: {form.name}" for form in found)
        raise AboardError(data_quality.FORMAT, seen, "several", formats=formats)
    if not found:
        raise _nothing(records)
    return found[0]


def _given(records: Sequence[Mapping[str, Any]], given: str, text_column: str | None) -> Format:
    if given not in NAMES:
        seen = f"there is no format '{visible(given)}'; {did_you_mean(given, NAMES)}"
        formats = " ".join(f"format: {name}" for name in NAMES)
        raise AboardError(data_quality.FORMAT, seen, "unknown", formats=formats)
    if text_column is not None and given != "text":
        seen = f"text_column goes with plain text, and the format given is {given}"
        raise AboardError(data_quality.FORMAT, seen, "text-column")
    if given == "text":
        return Format(name="text", why="given", columns=(text_column or "text",))
    column = next((column for column in _CONVERSATIONS if _has(records, column)), _CONVERSATIONS[given == "sharegpt"])
    return Format(name=given, why="given", columns=_columns(given, column))


def _columns(name: Name, conversation: str = "messages") -> tuple[str, ...]:
    """All that the format reads, the one that it can't do without first."""
    return {
        "alpaca": ("instruction", "input", "output", "system", "history"),
        "sharegpt": (conversation, "system", "tools"),
        "messages": (conversation, "tools"),
        "prompt-completion": ("prompt", "completion", "tools"),
        "text": ("text",),
        "tokens": ("input_ids", "labels", "loss_mask", "attention_mask"),
    }[name]


def _candidates(records: Sequence[Mapping[str, Any]]) -> list[Format]:
    found: list[Format] = []
    if _has(records, "input_ids"):
        found.append(Format(name="tokens", why="a column input_ids", columns=_columns("tokens")))
    for column in _CONVERSATIONS:
        keys = _turn_keys(records, column)
        if {"role", "content"} & keys:
            why = f"{column} with role and content"
            found.append(Format(name="messages", why=why, columns=_columns("messages", column)))
        elif {"from", "value"} <= keys:
            why = f"{column} with from and value"
            found.append(Format(name="sharegpt", why=why, columns=_columns("sharegpt", column)))
    if _has(records, "prompt") and _has(records, "completion"):
        why = "columns prompt, completion"
        found.append(Format(name="prompt-completion", why=why, columns=_columns("prompt-completion")))
    if _has(records, "instruction") and _has(records, "output"):
        found.append(Format(name="alpaca", why="columns instruction, output", columns=_columns("alpaca")))
    if _has(records, "text"):
        found.append(Format(name="text", why="a column text", columns=_columns("text")))
    return found


def _nothing(records: Sequence[Mapping[str, Any]]) -> AboardError:
    columns = list(dict.fromkeys(str(name) for record in records for name in record))
    needs = "; ".join(f"{name} needs {columns}" for name, columns in _NEEDS.items())
    if not records:
        return AboardError(data_quality.FORMAT, f"no row could be read, so no format shows; {needs}", "unread")
    if {"chosen", "rejected"} <= set(columns):
        seen = "columns chosen and rejected are preferences (for DPO), which are not trained on here"
        return AboardError(data_quality.FORMAT, seen, "preferences")
    texts = [name for name in columns if any(isinstance(record.get(name), str) for record in records)]
    seen = f"no format fits the columns {visible(', '.join(columns), 300)}; {needs}"
    if texts:
        return AboardError(data_quality.FORMAT, seen, "plain", column=texts[0])
    return AboardError(data_quality.FORMAT, seen, "columns")


def _has(records: Sequence[Mapping[str, Any]], column: str) -> bool:
    return any(record.get(column) is not None for record in records)


def _turn_keys(records: Sequence[Mapping[str, Any]], column: str) -> set[str]:
    """The keys of the first turn that there is in the column."""
    for record in records:
        turns = record.get(column)
        if isinstance(turns, list) and turns and isinstance(turns[0], dict):
            return set(turns[0])
    return set()
