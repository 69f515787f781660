"""A row of the user's data on its way to tokens: its location, its content, or why it is invalid."""

import json
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass

RowKind = Literal["chat", "pair", "text", "tokens"]
ChatMessage = dict[str, Any]
Ids = NDArray[np.uint32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLocation:
    """The location of a row, counted from 1: lines if the file has lines, else rows (parquet, json)."""

    file: Untrusted
    line: int
    unit: Literal["line", "row"] = "line"

    def __str__(self) -> str:
        file = self.file.visible(200)
        return f"{file}:{self.line}" if self.unit == "line" else f"{file} row {self.line}"


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRow:
    """One row of a format; `kind` decides which fields are set.

    `chat` has messages (and tools); `pair` has prompt and completion, and messages too where the same content can go
    through a chat template (alpaca); `text` has text; `tokens` has ids, and mask if the file says which to train.
    `trains` says for each message whether it may be supervised; None means every answer may be.
    """

    location: RowLocation
    kind: RowKind
    messages: tuple[ChatMessage, ...] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    trains: tuple[bool, ...] | None = None
    prompt: str | None = None
    completion: str | None = None
    text: str | None = None
    ids: Ids | None = None
    mask: Mask | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InvalidRow:
    """A row that can't be used: a value to count and show, never an exception."""

    location: RowLocation
    code: str
    why: Untrusted

    def __str__(self) -> str:
        return f"{self.location}: {self.why.visible(300)}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EncodedRow:
    """A row as tokens; mask is True for tokens in the loss."""

    location: RowLocation
    ids: Ids
    mask: Mask


def fingerprint_row(row: DataRow) -> bytes:
    """16 bytes that are equal for rows of equal content, wherever they are."""
    if row.kind == "text":
        parts: object = row.text
    elif row.kind == "tokens":
        ids = row.ids if row.ids is not None else np.empty(0, np.uint32)
        parts = [ids.tobytes().hex(), None if row.mask is None else row.mask.tobytes().hex()]
    elif row.kind == "pair":
        parts = [row.prompt, row.completion]
    else:
        parts = [row.messages, row.tools, row.trains]
    content = json.dumps([row.kind, parts], ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()
