"""Writes files of rows and a tokenizer, for tests of data preparation."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from chats import CHATML, Family, made

from aboard.commands.data.prepare_data import DataCheckRequest, inspect_data
from aboard.trainer.data.quality.data_report import DataReport


def conversation(number: int, *, ask: str = "Who are you", answer: str = "I am fine") -> dict[str, Any]:
    """A valid row, different for each number."""
    return {
        "messages": [
            {"role": "user", "content": f"{ask} {number} ?"},
            {"role": "assistant", "content": f"{answer} {number}"},
        ]
    }


def written(path: Path, rows: Iterable[Mapping[str, Any] | str]) -> str:
    """Writes a jsonl file; a string is written as a raw line."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path.name


def tokenizer(folder: Path, family: Family = CHATML, template: str | None = None) -> str:
    """The family's tokenizer, saved to a directory."""
    made(family, template=template).save_pretrained(folder)
    return folder.name


def looked(*files: str, **asked: Any) -> DataReport:
    return inspect_data(DataCheckRequest(files=files, command=f"aboard data {' '.join(files)}", **asked))
