"""What the tests of preparation share: rows on disk, an encoder that needs no tokenizer, and directories as hashes."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Event

import numpy as np

from aboard.trainer.data.intake.row_formats import RowFormat
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
from aboard.trainer.data.rows import DataRow, EncodedRow, InvalidRow
from aboard.trainer.data.tokenize_workers.prepare_data import PreparationSource

TEXT = RowFormat(name="text", why="given", columns=("text",))
CHUNK = 8 << 10
SHARD = 3 * CHUNK


@dataclass(frozen=True)
class Size:
    """A vocabulary of which only the size is known."""

    size: int = 256


@dataclass(frozen=True)
class Bytes:
    """Each byte is a token; every one that isn't a blank is supervised."""

    identity: str = "bytes"
    vocabulary: Size = Size()

    def __call__(self, rows: Sequence[DataRow]) -> list[EncodedRow | InvalidRow]:
        found: list[EncodedRow | InvalidRow] = []
        for row in rows:
            ids = np.frombuffer((row.text or "").encode(), np.uint8).astype(np.uint32)
            found.append(EncodedRow(location=row.location, ids=ids, mask=ids != ord(" ")))
        return found


class Stuck(Bytes):
    """An encoder that never comes back."""

    def __call__(self, rows: Sequence[DataRow]) -> list[EncodedRow | InvalidRow]:
        Event().wait(300)
        return []

    @staticmethod
    def at_work(cache: Path) -> Iterator[Path]:
        """The units that are being written."""
        return cache.glob("*.making/units/.*.tokens.*")


def text_of(line: int) -> str:
    """The text on this line: 1 to 120 words of their own."""
    draw = random.Random(line)  # noqa: S311 - no secrets
    return " ".join(f"{line}x{draw.randrange(1000)}" for _ in range(draw.randint(1, 120)))


def write_rows(path: Path, rows: int, *, first: int = 1) -> Path:
    lines = (json.dumps({"text": text_of(line)}) for line in range(first, first + rows))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def source(path: Path) -> PreparationSource:
    return PreparationSource(form=TEXT, chunks=tuple(list_source_chunks(SourceSpec(path=str(path)), chunk_bytes=CHUNK)))


def hashes(folder: Path) -> dict[str, str]:
    """Every file below the directory by its content."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}
