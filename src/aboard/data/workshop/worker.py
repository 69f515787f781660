"""A worker: a process of its own that looks at chunks, encodes units and assembles shards, one order at a time."""

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

from aboard.data.gate.terms import Terms
from aboard.data.intake.chunks import Chunk
from aboard.data.intake.formats import Format
from aboard.data.intake.parts import Part
from aboard.data.intake.read import read
from aboard.data.rows import Broken, Row
from aboard.data.store.fingerprints import Stamp, changed, stamp_of
from aboard.data.store.manifest import Shard
from aboard.data.workshop.assemble import Unsound, assemble
from aboard.data.workshop.glass import terms_of
from aboard.data.workshop.look import Looked, LookOrder, look_at
from aboard.data.workshop.unit import Encode, UnitRecord, write_unit
from aboard.diagnoses import AboardError, data
from aboard.diagnoses.errors import pack_error
from aboard.lazy import dataclass

_EVERY = 0.2
# A trace names the place at its end; a row that is quoted in it may be of any length.
_FIRST, _LAST = 2000, 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeOrder:
    """Encode this chunk into the unit at `path`, if its files still have these stamps when they have been read."""

    number: int
    chunk: Chunk
    form: Format
    part: Part | None
    origin: int
    path: Path
    stamps: tuple[tuple[Path, Stamp], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AssembleOrder:
    """Make one shard of these units."""

    number: int
    units: tuple[Path, ...]
    folder: Path
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """So many rows and tokens of the order are done; where it is looked at only, rows and characters."""

    rows: int
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The order can't be carried out: an error of ours as `pack_error` has it, or where the program broke."""

    error: Mapping[str, Any]


Order = LookOrder | EncodeOrder | AssembleOrder
Answer = Told | Looked | UnitRecord | Shard | Unsound | Failed


def serve(connection: Connection) -> None:
    """Takes the encoder, then orders, until there are no more; ends at once with the process that started it."""
    # Ctrl-C reaches the whole terminal: the parent ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_die_with_parent, daemon=True).start()
    # One thread each: there are as many workers as cores. Before the first text is encoded, which starts threads.
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
    encode: Encode | None = connection.recv()
    hand = _Hand(encode, connection)
    while True:
        try:
            order: Order | None = connection.recv()
        except EOFError:
            return
        if order is None:
            return
        connection.send(hand.answer(order))


def _die_with_parent() -> None:
    """Whoever killed it may start the same preparation again: two at work in one place would be one too many."""
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


class _Hand:
    """Carries out orders with one encoder; without one it can only look."""

    def __init__(self, encode: Encode | None, connection: Connection) -> None:
        self._encode = encode
        self._terms = Terms() if encode is None else terms_of(encode)
        self._connection = connection

    def answer(self, order: Order) -> Answer:
        """What was made, or why it couldn't be."""
        try:
            return self._done(order)
        except Unsound as unsound:
            return unsound
        except AboardError as error:
            return _failed(error)
        except OSError as error:
            place = _place(order)
            return _failed(AboardError(data.DISK, f"{error.filename or place}: {error.strerror}", "room", folder=place))
        except Exception:  # noqa: BLE001 - told to the parent, with its trace
            return _failed(AboardError(data.WORKER, f"a worker broke: {_trace()}", "row"))

    def _done(self, order: Order) -> Answer:
        if isinstance(order, AssembleOrder):
            return assemble(order.units, order.folder, order.name)
        tell = _Teller(self._connection).tell
        if isinstance(order, LookOrder):
            return look_at(order, self._encode, tell)
        if self._encode is None:
            raise AboardError(data.WORKER, "a worker without an encoder was told to encode", "report")
        rows = read(order.chunk, order.form)
        rows = _unchanged(rows if order.part is None else order.part.of(rows), order)
        return write_unit(rows, self._encode, origin=order.origin, path=order.path, tell=tell, terms=self._terms)


def _failed(error: AboardError) -> Failed:
    return Failed(error=pack_error(error))


def _trace() -> str:
    """Of the exception that is being handled; its middle is left out when it is long."""
    whole = traceback.format_exc()
    return whole if len(whole) <= _FIRST + _LAST else f"{whole[:_FIRST]}\n…\n{whole[-_LAST:]}"


def _place(order: Order) -> Path:
    """Where it reads or writes."""
    if isinstance(order, LookOrder):
        return Path(order.chunk.path).parent
    return order.path.parent if isinstance(order, EncodeOrder) else order.folder


def _unchanged(rows: Iterable[Row | Broken], order: EncodeOrder) -> Iterator[Row | Broken]:
    """The rows; at their end, before the unit counts as made, an error if they came from another content."""
    yield from rows
    for path, stamp in order.stamps:
        if stamp_of(path) != stamp:
            raise changed(path)


class _Teller:
    """Passes progress on, a few times a second."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows = self._tokens = 0
        self._next = monotonic() + _EVERY

    def tell(self, rows: int, tokens: int) -> None:
        self._rows += rows
        self._tokens += tokens
        if monotonic() >= self._next:
            self._connection.send(Told(rows=self._rows, tokens=self._tokens))
            self._next = monotonic() + _EVERY
