"""A chunk: a slice of one file, small enough for one worker, with the number of its first row."""

from typing import Literal

from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.rows import InvalidRow, RowLocation

# Chunk boundaries depend on the file and this size only, so that shards are equal on any number of cores.
CHUNK_BYTES = 16 << 20

Store = Literal["jsonl", "json", "text", "parquet", "arrow", "megatron", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Picklable; any worker reads it with `aboard.trainer.data.intake.read_chunk.read_rows`, in any order.

    `file` is the name shown to the user, `path` is opened. `start` and `stop` count bytes of a jsonl or text file, row
    groups of a parquet file, record batches of an arrow file, documents of a megatron file; a stop of 0 is the end.
    `first` is the line or row number of its first row, `size` its share of the file in bytes, for a progress bar. A
    `broken` chunk stands for a file that can't be opened: reading it gives one InvalidRow with `why`.
    """

    file: Untrusted
    path: str
    store: Store
    start: int = 0
    stop: int = 0
    first: int = 1
    size: int = 0
    why: Untrusted = NO_TEXT


def make_broken_chunk(file: Untrusted, path: str, error: BaseException) -> Chunk:
    return Chunk(file=file, path=path, store="broken", why=Untrusted(f"the file can't be read: {format_error(error)}"))


def make_cut_off_row(location: RowLocation, error: BaseException) -> InvalidRow:
    """The last row of a file whose rest can't be read."""
    why = f"the file can't be read further: {format_error(error)}"
    return InvalidRow(location=location, code="file-cut", why=Untrusted(why))


def format_error(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
