"""`aboard data`: read every row as training would, count what the gate must know, and judge it."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from time import monotonic

from aboard.data.feed.fill import fill_of
from aboard.data.gate.evidence import Evidence
from aboard.data.gate.judge import examples, judge, known_codes
from aboard.data.gate.report import DataReport, Source
from aboard.data.gate.tally import Tally
from aboard.data.gate.terms import Terms
from aboard.data.intake.formats import Format
from aboard.data.intake.read import format_of, records
from aboard.data.intake.sources import SourceSpec, sources
from aboard.data.rows import Broken
from aboard.data.tokens.encode import Encoder, LossOn
from aboard.data.tokens.pieces import Shown
from aboard.data.workshop.glass import BESIDE, Glass, shown_item
from aboard.data.workshop.prepare import Prepared
from aboard.data.workshop.prepare import Source as Given
from aboard.data.workshop.reading import Opened, Progress, Reading
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass

__all__ = ["Progress", "Question", "Ready", "judged", "known_codes", "look", "opened_as"]


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


def look(question: Question, on_progress: Callable[[Progress], None] = lambda _far: None) -> DataReport:
    """Every row is read once, in bounded memory; nothing is written."""
    began = monotonic()
    known_codes(question.allow)  # before the long wait
    glass = None
    if question.tokenizer is not None:
        glass = Glass(Encoder(question.tokenizer, template=question.template, loss_on=question.loss_on))
    terms = _terms(question, glass)
    opened = [opened_as(path, question) for path in (*question.files, *question.validation)]
    reading = Reading(opened, terms, on_progress, show=question.show)
    reading.go(None if glass is None else glass.encoder)
    found = [_source(each, reading.tallies[at], at >= len(question.files)) for at, each in enumerate(opened)]
    whole = sum((each.tally for each in found if not each.validation), Tally())
    apart = sum((each.tally for each in found if each.validation), Tally())
    rows = [shown_item(item, glass, terms.max_length) for item in reading.first_rows()]
    return _report(question, glass, found, whole, apart if question.validation else None, rows, began)


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Prepared data and what it was made of, one source for each path that was asked about."""

    sources: Sequence[Given]
    prepared: Prepared

    @property
    def counted(self) -> list[tuple[Given, Tally]]:
        return list(zip(self.sources, self.prepared.tallies, strict=True))


def judged(question: Question, encoder: Encoder, trained: Sequence[Ready], held: Ready | None = None) -> DataReport:
    """The same of data that is prepared, in one part or several: by what was counted then, so that no row is read."""
    began = monotonic()
    found = []
    for parts, paths in ((trained, question.files), ([held] if held else [], question.validation)):
        counted = [(given, tally) for each in parts for given, tally in each.counted]
        for path, (given, tally) in zip(paths, counted, strict=True):
            opened = Opened(path=path, chunks=given.chunks, format=given.form)
            found.append(_source(opened, tally, parts is not trained))
    whole = reduce(add, (each.prepared.tally for each in trained))
    apart = None if held is None else held.prepared.tally
    return _report(question, Glass(encoder), found, whole, apart, (), began)


def _report(
    question: Question,
    glass: Glass | None,
    found: Sequence[Source],
    whole: Tally,
    apart: Tally | None,
    rows: Sequence[Shown],
    began: float,
) -> DataReport:
    allowed, terms = known_codes(question.allow), _terms(question, glass)
    evidence = Evidence(
        tally=whole,
        terms=terms,
        files=question.files,
        command=question.command,
        format=", ".join(dict.fromkeys(each.format for each in found if not each.validation)),
        given=question.format is not None,
        validation=apart,
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
        rows=tuple(rows),
        examples=shown,
        fill=fill_of(whole.by_kind, terms.max_length) if terms.max_length and whole.encoded else None,
        batch=question.batch,
        seconds=monotonic() - began,
    )


def _source(source: Opened, counted: Tally, validation: bool) -> Source:  # noqa: FBT001 - as the report has it
    return Source(
        path=Untrusted(source.path),
        format=source.format.name,
        why=source.format.why,
        columns=source.format.columns,
        tally=counted,
        files=len({chunk.file for chunk in source.chunks}),
        validation=validation,
    )


def opened_as(path: str, question: Question) -> Opened:
    """A path as the question wants it read."""
    spec = SourceSpec(path=path, format=question.format, text_column=question.text_column)
    chunks = sources(spec)
    try:
        form = format_of(chunks, given=question.format, text_column=question.text_column)
    except AboardError:
        if any(not isinstance(record, Broken) for chunk in chunks for record in records(chunk)):
            raise
        # Where nothing can be read there is no format to be wrong: the gate tells which lines, and why.
        form = Format(name="text", why="no row can be read", columns=())
    return Opened(path=path, chunks=chunks, format=form)


def _terms(question: Question, glass: Glass | None) -> Terms:
    if glass is None:
        return Terms(max_length=question.max_length, loss_on=question.loss_on)
    return glass.terms(str(question.tokenizer), max_length=question.max_length)
