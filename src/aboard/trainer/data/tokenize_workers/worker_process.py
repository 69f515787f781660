"""A worker process: inspects chunks, encodes units and assembles shards, one order at a time."""

import os
import signal
import traceback
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

from aboard.content_hash_cache import FileStamp, make_changed_error, read_file_stamp
from aboard.diagnoses import AboardError
from aboard.diagnoses.errors import pack_error
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.intake.chunks import Chunk
from aboard.trainer.data.intake.read_chunk import read_rows
from aboard.trainer.data.intake.row_formats import RowFormat
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.rows import DataRow, InvalidRow
from aboard.trainer.data.sampling.validation_split import SplitSide
from aboard.trainer.data.store.shard_manifest import Shard
from aboard.trainer.data.tokenize_workers.chunk_inspection import InspectedChunk, InspectOrder, inspect_chunk
from aboard.trainer.data.tokenize_workers.encoded_unit import RowEncoder, UnitRecord, write_unit
from aboard.trainer.data.tokenize_workers.shard_assembly import DamagedUnitError, assemble_shard
from aboard.trainer.data.tokenize_workers.tokenizer_inspector import build_encoding_settings
from aboard.trainer.diagnoses import data

_REPORT_SECONDS = 0.2
# A traceback names the location at its end; a row quoted in it may have any length.
_TRACE_HEAD, _TRACE_TAIL = 2000, 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeOrder:
    """Encode this chunk into the unit at `path`, if its files still have these stamps after reading."""

    chunk: Chunk
    form: RowFormat
    part: SplitSide | None
    origin: int
    path: Path
    stamps: tuple[tuple[Path, FileStamp], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AssembleOrder:
    """Assemble one shard from these units."""

    number: int
    units: tuple[Path, ...]
    folder: Path
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerProgress:
    """Rows and tokens of the order done so far; for an inspection, rows and characters."""

    rows: int
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerFailure:
    """The order failed: with one of our errors as packed by `pack_error`, or with the traceback of a bug."""

    error: Mapping[str, Any]


WorkerOrder = InspectOrder | EncodeOrder | AssembleOrder
WorkerAnswer = WorkerProgress | InspectedChunk | UnitRecord | Shard | DamagedUnitError | WorkerFailure


def run_worker(connection: Connection) -> None:
    """Receives the encoder, then orders, until there are no more; exits with the process that started it."""
    # Ctrl-C reaches the whole terminal: the parent terminates us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_exit_with_parent, daemon=True).start()
    # One thread each: there are as many workers as cores. Set before the first text is encoded, which starts threads.
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
    encoder: RowEncoder | None = connection.recv()
    runner = _OrderRunner(encoder, connection)
    while True:
        try:
            order: WorkerOrder | None = connection.recv()
        except EOFError:
            return
        if order is None:
            return
        connection.send(runner.answer(order))


def _exit_with_parent() -> None:
    """Exits with the parent: if the same preparation starts again, two would write to one directory."""
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


class _OrderRunner:
    """Executes orders with one encoder; without one it can only inspect."""

    def __init__(self, encoder: RowEncoder | None, connection: Connection) -> None:
        self._encode = encoder
        self._settings = EncodingSettings() if encoder is None else build_encoding_settings(encoder)
        self._connection = connection

    def answer(self, order: WorkerOrder) -> WorkerAnswer:
        """The result of an order, or its failure."""
        try:
            return self._run_order(order)
        except DamagedUnitError as damaged:
            return damaged
        except AboardError as error:
            failure = error
        except OSError as error:
            folder = _get_order_folder(order)
            failure = AboardError(data.DISK, f"{error.filename or folder}: {error.strerror}", "room", folder=folder)
        except Exception:  # noqa: BLE001 - reported to the parent, with its traceback
            failure = AboardError(data.WORKER, f"a worker failed: {_format_trace()}", "row")
        return WorkerFailure(error=pack_error(failure))

    def _run_order(self, order: WorkerOrder) -> WorkerAnswer:
        if isinstance(order, AssembleOrder):
            return assemble_shard(order.units, order.folder, order.name)
        on_progress = _ProgressReporter(self._connection).report
        if isinstance(order, InspectOrder):
            return inspect_chunk(order, self._encode, on_progress)
        if self._encode is None:
            raise AboardError(data.WORKER, "a worker without an encoder was asked to encode rows", "report")
        rows = read_rows(order.chunk, order.form)
        rows = _check_unchanged(rows if order.part is None else order.part.of(rows), order)
        return write_unit(
            rows, self._encode, origin=order.origin, path=order.path, on_progress=on_progress, settings=self._settings
        )


def _format_trace() -> str:
    """The traceback of the current exception, with its middle left out if it is long."""
    whole = traceback.format_exc()
    return whole if len(whole) <= _TRACE_HEAD + _TRACE_TAIL else f"{whole[:_TRACE_HEAD]}\n…\n{whole[-_TRACE_TAIL:]}"


def _get_order_folder(order: WorkerOrder) -> Path:
    """The directory that it reads or writes."""
    if isinstance(order, InspectOrder):
        return Path(order.chunk.path).parent
    return order.path.parent if isinstance(order, EncodeOrder) else order.folder


def _check_unchanged(rows: Iterable[DataRow | InvalidRow], order: EncodeOrder) -> Iterator[DataRow | InvalidRow]:
    """Yields the rows; at the end, before the unit counts as done, raises if the files changed."""
    yield from rows
    for path, stamp in order.stamps:
        if read_file_stamp(path) != stamp:
            raise make_changed_error(path)


class _ProgressReporter:
    """Reports progress a few times a second."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows = self._tokens = 0
        self._next = monotonic() + _REPORT_SECONDS

    def report(self, rows: int, tokens: int) -> None:
        self._rows += rows
        self._tokens += tokens
        if monotonic() >= self._next:
            self._connection.send(WorkerProgress(rows=self._rows, tokens=self._tokens))
            self._next = monotonic() + _REPORT_SECONDS
