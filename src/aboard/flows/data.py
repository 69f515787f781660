"""`aboard data`: read every row as training would, count what the gate must know, and judge it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import monotonic

from aboard.core.errors import AboardError
from aboard.data.chunks import Chunk
from aboard.data.encode import Encoder, LossOn
from aboard.data.fill import fill_of
from aboard.data.formats import Format
from aboard.data.gate.evidence import Evidence
from aboard.data.gate.judge import examples, judge, known_codes, tally
from aboard.data.gate.tally import Item, Tally
from aboard.data.gate.terms import Terms
from aboard.data.glass import BESIDE, Glass, shown_item
from aboard.data.pieces import Shown
from aboard.data.read import format_of, read, records
from aboard.data.report import DataReport, Source
from aboard.data.rows import Broken, Row
from aboard.data.sources import SourceSpec, sources

# Rows that are encoded at once: enough for the tokenizer to use every core, few enough to be held.
BATCH = 512


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked about: files, and on which terms they would be trained on. `command` asks the same again."""

    files: tuple[str, ...]
    command: str
    format: str | None = None
    text_column: str | None = None
    tokenizer: str | None = None
    template: str | None = None
    max_length: int | None = None
    loss_on: LossOn = "answers"
    validation: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    batch: int | None = None
    show: int = 0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the reading is: bytes of all files, and rows so far."""

    done: int
    total: int
    rows: int


def look(question: Question, on_progress: Callable[[Progress], None] = lambda _far: None) -> DataReport:
    """Every row is read once, in bounded memory; nothing is written."""
    began = monotonic()
    allowed = known_codes(question.allow)
    glass = None
    if question.tokenizer is not None:
        glass = Glass(Encoder(question.tokenizer, template=question.template, loss_on=question.loss_on))
    terms = _terms(question, glass)
    trained = [_opened(path, question) for path in question.files]
    held = [_opened(path, question) for path in question.validation]
    total = sum(each.size for each in (*trained, *held))
    reading = _Reading(glass, terms, on_progress, total=total, show=question.show)
    found = [*(reading.all_of(each) for each in trained), *(reading.all_of(each, validation=True) for each in held)]
    whole = sum((each.tally for each in found if not each.validation), Tally())
    apart = sum((each.tally for each in found if each.validation), Tally())
    evidence = Evidence(
        tally=whole,
        terms=terms,
        files=question.files,
        command=question.command,
        format=", ".join(dict.fromkeys(each.format for each in found if not each.validation)),
        given=question.format is not None,
        validation=apart if held else None,
        held=question.validation,
    )
    findings = judge(evidence, allowed)
    shown = {}
    if glass is not None:
        shown = {
            code: glass.shown(each.encoded, limit=terms.max_length, most=BESIDE, length=each.length)
            for code, each in examples(findings, whole).items()
            if each.encoded is not None
        }
    return DataReport(
        sources=tuple(found),
        tally=whole,
        terms=terms,
        findings=tuple(findings),
        allowed=allowed,
        rows=tuple(reading.rows),
        examples=shown,
        fill=fill_of(whole.by_kind, terms.max_length) if terms.max_length and whole.encoded else None,
        batch=question.batch,
        seconds=monotonic() - began,
    )


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """A source before its rows are read."""

    path: str
    chunks: Sequence[Chunk]
    format: Format

    @property
    def size(self) -> int:
        return sum(chunk.size for chunk in self.chunks)


class _Reading:
    """Goes through sources one after another, and keeps the first rows to be shown."""

    def __init__(
        self,
        glass: Glass | None,
        terms: Terms,
        on_progress: Callable[[Progress], None],
        *,
        total: int,
        show: int,
    ) -> None:
        self.rows: list[Shown] = []
        self._glass = glass
        self._terms = terms
        self._on_progress = on_progress
        self._total = total
        self._show = show
        self._done = 0
        self._read = 0

    def all_of(self, source: _Opened, *, validation: bool = False) -> Source:
        counted = Tally()
        for chunk in source.chunks:
            inside = 0
            for items in self._batches(chunk, source.format):
                found = tally(items, self._terms)
                counted += found
                self._keep(items)
                self._read += len(items)
                # By their text: how many bytes of a chunk are read isn't told, and it is for the eye only.
                inside = min(chunk.size, inside + found.characters.total)
                self._on_progress(Progress(done=self._done + inside, total=self._total, rows=self._read))
            self._done += chunk.size
        return Source(
            path=source.path,
            format=source.format.name,
            why=source.format.why,
            columns=source.format.columns,
            tally=counted,
            files=len({chunk.file for chunk in source.chunks}),
            validation=validation,
        )

    def _batches(self, chunk: Chunk, form: Format) -> Iterator[list[Item]]:
        rows = read(chunk, form)
        while batch := list(islice(rows, BATCH)):
            yield self._items(batch)

    def _items(self, rows: Sequence[Row | Broken]) -> list[Item]:
        if self._glass is None:
            return [Item(row=row) for row in rows]
        encoded = iter(self._glass.encoder([row for row in rows if isinstance(row, Row)]))
        return [Item(row=row, encoded=next(encoded) if isinstance(row, Row) else None) for row in rows]

    def _keep(self, items: Iterable[Item]) -> None:
        for item in items:
            if len(self.rows) < self._show and item.broken is None:
                self.rows.append(shown_item(item, self._glass, self._terms.max_length))


def _opened(path: str, question: Question) -> _Opened:
    spec = SourceSpec(path=path, format=question.format, text_column=question.text_column)
    chunks = sources(spec)
    try:
        form = format_of(chunks, given=question.format, text_column=question.text_column)
    except AboardError:
        if any(not isinstance(record, Broken) for chunk in chunks for record in records(chunk)):
            raise
        # Where nothing can be read there is no format to be wrong: the gate tells which lines, and why.
        form = Format(name="text", why="no row can be read", columns=())
    return _Opened(path=path, chunks=chunks, format=form)


def _terms(question: Question, glass: Glass | None) -> Terms:
    if glass is None:
        return Terms(max_length=question.max_length, loss_on=question.loss_on)
    return glass.terms(str(question.tokenizer), max_length=question.max_length)
