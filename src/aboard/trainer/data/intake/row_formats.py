"""The row formats, and their recognition by columns."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from aboard.core.text.input_text import suggest_word
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.intake.data_files import name_new_file
from aboard.trainer.diagnoses import data_quality

FormatName = Literal["alpaca", "sharegpt", "messages", "prompt-completion", "text", "tokens"]
FORMAT_NAMES: tuple[FormatName, ...] = get_args(FormatName)

_CONVERSATIONS = ("messages", "conversations", "conversation")
_NEEDS = {
    "alpaca": "instruction, output (and input, system)",
    "sharegpt": "conversations: [{from, value}, …]",
    "messages": "messages: [{role, content}, …] (and tools)",
    "prompt-completion": "prompt, completion",
    "text": "text, or the column in text_column:",
    "tokens": "input_ids (and labels, loss_mask or attention_mask)",
}

# Usual names of columns that no format has, for a command that renames them.
_ASKING_NAMES = ("question", "query", "prompt", "instruction", "input", "source", "user")
_ANSWERING_NAMES = ("answer", "response", "completion", "output", "target", "reply", "assistant")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFormat:
    """How records are read: the format's name, why it was chosen, and the columns that it reads."""

    name: FormatName
    why: str
    columns: tuple[str, ...]


def recognize_format(
    records: Sequence[Mapping[str, Any]],
    *,
    format_name: str | None = None,
    text_column: str | None = None,
    file: Untrusted | None = None,
) -> RowFormat:
    """The format of a source by its first records; raises if several or none fit, with the options to choose from.

    `file` is set if it has lines of JSON, so that a command can split it.
    """
    if format_name is None and text_column is not None:
        format_name = "text"
    if format_name is not None:
        return _use_given_format(records, format_name, text_column)
    candidates = _find_candidates(records)
    if len(candidates) > 1:
        seen = f"the rows could be {' or '.join(f'{form.name} ({form.why})' for form in candidates)}"
        if file is not None and not any(len(_find_candidates([record])) > 1 for record in records):
            raise _make_mixed_error(candidates[0], seen, file)
        formats = " or ".join(f"format: {form.name}" for form in candidates)
        raise AboardError(data_quality.FORMAT, seen, "several", formats=formats)
    if not candidates:
        raise _make_no_format_error(records, file)
    return candidates[0]


def _use_given_format(records: Sequence[Mapping[str, Any]], format_name: str, text_column: str | None) -> RowFormat:
    if format_name not in FORMAT_NAMES:
        seen = f"there is no format '{escape_text(format_name)}'; {suggest_word(format_name, FORMAT_NAMES)}"
        formats = " ".join(f"format: {name}" for name in FORMAT_NAMES)
        raise AboardError(data_quality.FORMAT, seen, "unknown", formats=formats)
    if text_column is not None and format_name != "text":
        seen = f"text_column needs the format text, but the given format is {format_name}"
        raise AboardError(data_quality.FORMAT, seen, "text-column")
    if format_name == "text":
        return RowFormat(name="text", why="given", columns=(text_column or "text",))
    column = next(
        (column for column in _CONVERSATIONS if _has_column(records, column)), _CONVERSATIONS[format_name == "sharegpt"]
    )
    return _make_format(format_name, "given", column)


def _make_format(name: FormatName, why: str, conversation: str = "messages") -> RowFormat:
    """With all columns that the format reads, the required one first."""
    columns = {
        "alpaca": ("instruction", "input", "output", "system", "history"),
        "sharegpt": (conversation, "system", "tools"),
        "messages": (conversation, "tools"),
        "prompt-completion": ("prompt", "completion", "tools"),
        "text": ("text",),
        "tokens": ("input_ids", "labels", "loss_mask", "attention_mask"),
    }[name]
    return RowFormat(name=name, why=why, columns=columns)


def _find_candidates(records: Sequence[Mapping[str, Any]]) -> list[RowFormat]:
    found: list[RowFormat] = []
    if _has_column(records, "input_ids"):
        found.append(_make_format("tokens", "a column input_ids"))
    for column in _CONVERSATIONS:
        keys = _find_turn_keys(records, column)
        if {"role", "content"} & keys:
            found.append(_make_format("messages", f"{column} with role and content", column))
        elif {"from", "value"} <= keys:
            found.append(_make_format("sharegpt", f"{column} with from and value", column))
    if _has_column(records, "prompt") and _has_column(records, "completion"):
        found.append(_make_format("prompt-completion", "columns prompt, completion"))
    if _has_column(records, "instruction") and _has_column(records, "output"):
        found.append(_make_format("alpaca", "columns instruction, output"))
    if _has_column(records, "text"):
        found.append(_make_format("text", "a column text"))
    return found


def _make_mixed_error(row_format: RowFormat, seen: str, file: Untrusted) -> AboardError:
    """Each row has one format, and they differ: no format reads all of them, but two files do."""
    column, stem = row_format.columns[0], file.raw().removesuffix(".jsonl")
    return AboardError(
        data_quality.FORMAT,
        f"{seen}: the file mixes formats",
        "split",
        fits=f'fromjson? | select(has("{column}"))',
        rest=f'fromjson? | select(has("{column}") | not)',
        file=file,
        kept=name_new_file(f"{stem}.{row_format.name}"),
        others=name_new_file(f"{stem}.others"),
    )


def _make_no_format_error(records: Sequence[Mapping[str, Any]], file: Untrusted | None) -> AboardError:
    columns = list(dict.fromkeys(str(name) for record in records for name in record))
    needs = "; ".join(f"{name} needs {columns}" for name, columns in _NEEDS.items())
    if not records:
        return AboardError(
            data_quality.FORMAT, f"no row could be read, so the format can't be recognized; {needs}", "unread"
        )
    if {"chosen", "rejected"} <= set(columns):
        seen = "columns chosen and rejected are preferences (for DPO), which are not supported"
        return AboardError(data_quality.FORMAT, seen, "preferences")
    texts = [name for name in columns if any(isinstance(record.get(name), str) for record in records)]
    seen = f"no format fits the columns {escape_text(', '.join(columns), 300)}; {needs}"
    asked = next((name for name in _ASKING_NAMES if name in texts), None)
    answered = next((name for name in _ANSWERING_NAMES if name in texts and name != asked), None)
    if file is not None and asked and answered:
        rename = f"{{prompt: .{asked}, completion: .{answered}}}"
        kept = name_new_file(f"{file.raw().removesuffix('.jsonl')}.renamed")
        return AboardError(data_quality.FORMAT, seen, "pair", filter=rename, file=file, kept=kept)
    if texts:
        return AboardError(data_quality.FORMAT, seen, "plain", column=texts[0])
    return AboardError(data_quality.FORMAT, seen, "columns")


def _has_column(records: Sequence[Mapping[str, Any]], column: str) -> bool:
    return any(record.get(column) is not None for record in records)


def _find_turn_keys(records: Sequence[Mapping[str, Any]], column: str) -> set[str]:
    """The keys of the first turn in the column."""
    for record in records:
        turns = record.get(column)
        if isinstance(turns, list) and turns and isinstance(turns[0], dict):
            return set(turns[0])
    return set()
