"""`aboard data`: reads every row as training would, collects statistics, and runs the data check."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from time import monotonic

from aboard.core.text.data_reference import DataReference
from aboard.diagnoses import AboardError, Shell
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.intake.read_chunk import detect_format, read_records
from aboard.trainer.data.intake.row_formats import RowFormat
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
from aboard.trainer.data.quality.data_check import check_allowed_codes, check_data, find_examples
from aboard.trainer.data.quality.data_evidence import DataEvidence
from aboard.trainer.data.quality.data_report import DataReport, SourceReport
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.row_statistics import DataStatistics
from aboard.trainer.data.rows import InvalidRow
from aboard.trainer.data.sampling.packing_estimate import estimate_packing
from aboard.trainer.data.sampling.validation_split import SplitSide
from aboard.trainer.data.tokenize_workers.prepare_data import PreparationSource, PreparedData
from aboard.trainer.data.tokenize_workers.source_inspection import InspectionProgress, OpenedSource, SourceInspection
from aboard.trainer.data.tokenize_workers.tokenizer_inspector import (
    EXAMPLE_TOKENS,
    TokenizerInspector,
    build_item_preview,
)
from aboard.trainer.data.tokens.encoder import Encoder, LossOn
from aboard.trainer.data.tokens.row_preview import RowPreview
from aboard.trainer.diagnoses import data


@dataclass(frozen=True, kw_only=True)
class DataCheckRequest:
    """The files to check and the settings to train on them.

    `command` runs the same check again; `training` starts the training for which the data is checked.
    """

    files: tuple[str, ...]
    command: str
    training: Shell | None = None
    format: str | None = None
    text_column: str | None = None
    tokenizer: str | None = None
    trust_remote_code: bool = False
    template: str | None = None
    max_length: int | None = None
    loss_on: LossOn = "answers"
    validation: tuple[str, ...] = ()
    # The fraction of the rows of `files` that is the validation set, instead of files of its own.
    validation_share: float | None = None
    allow: tuple[str, ...] = ()
    batch: int | None = None
    show: int = 0


def inspect_data(
    request: DataCheckRequest, on_progress: Callable[[InspectionProgress], None] = lambda _far: None
) -> DataReport:
    """Reads every row once, in bounded memory; writes nothing."""
    began = monotonic()
    check_allowed_codes(request.allow)  # fails early, before the slow part
    inspector = None
    if request.tokenizer is not None:
        encoder = Encoder(
            request.tokenizer,
            template=request.template,
            loss_on=request.loss_on,
            trust_remote_code=request.trust_remote_code,
        )
        inspector = TokenizerInspector(encoder)
    settings = _build_settings(request, inspector)
    trained, held = split_sides(request.validation_share)
    opened = [replace(open_source(path, request), part=trained) for path in request.files]
    if held is None:
        opened += [open_source(path, request) for path in request.validation]
    else:
        opened += [replace(each, part=held) for each in opened]
    reading = SourceInspection(opened, settings, on_progress, show=request.show)
    reading.go(None if inspector is None else inspector.encoder)
    source_reports = [
        _describe_source(each, reading.tallies[at], at >= len(request.files)) for at, each in enumerate(opened)
    ]
    train_statistics = sum((each.statistics for each in source_reports if not each.validation), DataStatistics())
    validation_statistics = sum((each.statistics for each in source_reports if each.validation), DataStatistics())
    if held is not None:
        require_share(held.share, held=validation_statistics.rows, trained=train_statistics.rows)
    rows = [build_item_preview(item, inspector, settings.max_length) for item in reading.first_rows()]
    return _build_report(
        request,
        inspector,
        source_reports,
        train_statistics,
        validation_statistics if len(opened) > len(request.files) else None,
        rows,
        began,
    )


@dataclass(frozen=True, kw_only=True)
class PreparedSources:
    """Prepared data and its sources, one per requested path."""

    sources: Sequence[PreparationSource]
    prepared: PreparedData

    @property
    def counted(self) -> list[tuple[PreparationSource, DataStatistics]]:
        return list(zip(self.sources, self.prepared.tallies, strict=True))


def report_prepared_data(
    request: DataCheckRequest,
    encoder: Encoder,
    trained: Sequence[PreparedSources],
    validation: PreparedSources | None = None,
) -> DataReport:
    """The same report for prepared data, from the statistics of its preparation, without reading rows again."""
    began = monotonic()
    source_reports = []
    held_paths = request.validation if request.validation_share is None else request.files
    for parts, paths in ((trained, request.files), ([validation] if validation else [], held_paths)):
        counted = [(source, statistics) for each in parts for source, statistics in each.counted]
        for path, (source, statistics) in zip(paths, counted, strict=True):
            opened = OpenedSource(path=path, chunks=source.chunks, format=source.form, part=source.part)
            source_reports.append(_describe_source(opened, statistics, parts is not trained))
    train_statistics = reduce(add, (each.prepared.statistics for each in trained))
    validation_statistics = None if validation is None else validation.prepared.statistics
    return _build_report(
        request, TokenizerInspector(encoder), source_reports, train_statistics, validation_statistics, (), began
    )


def _build_report(
    request: DataCheckRequest,
    inspector: TokenizerInspector | None,
    source_reports: Sequence[SourceReport],
    train_statistics: DataStatistics,
    validation_statistics: DataStatistics | None,
    rows: Sequence[RowPreview],
    began: float,
) -> DataReport:
    allowed, settings = check_allowed_codes(request.allow), _build_settings(request, inspector)
    evidence = DataEvidence(
        statistics=train_statistics,
        settings=settings,
        files=request.files,
        command=request.command,
        format=", ".join(dict.fromkeys(each.format for each in source_reports if not each.validation)),
        given=request.format is not None,
        training=request.training,
        allowed=request.allow,
        validation=validation_statistics,
        validation_files=request.validation,
    )
    findings = check_data(evidence, allowed)
    rendered = {}
    if inspector is not None:
        rendered = {
            code: inspector.build_preview(
                each.encoded, limit=settings.max_length, most=EXAMPLE_TOKENS, length=each.length
            )
            for code, each in find_examples(findings, train_statistics).items()
            if each.encoded is not None
        }
    return DataReport(
        sources=tuple(source_reports),
        statistics=train_statistics,
        settings=settings,
        findings=tuple(findings),
        allowed=allowed,
        rows=tuple(rows),
        examples=rendered,
        fill=estimate_packing(train_statistics.by_kind, settings.max_length)
        if settings.max_length and train_statistics.encoded
        else None,
        batch=request.batch,
        seconds=monotonic() - began,
    )


def _describe_source(source: OpenedSource, statistics: DataStatistics, validation: bool) -> SourceReport:
    share = f"{100 * source.part.share:.12g}% of " if validation and source.part is not None else ""
    return SourceReport(
        path=Untrusted(f"{share}{source.path}"),
        format=source.format.name,
        why=source.format.why,
        columns=source.format.columns,
        statistics=statistics,
        files=len({chunk.file for chunk in source.chunks}),
        validation=validation,
    )


def split_sides(share: float | None) -> tuple[SplitSide, SplitSide] | tuple[None, None]:
    """The training and the validation side of all rows, if the validation set is a share of them."""
    if share is None:
        return None, None
    return SplitSide(name="train", share=share), SplitSide(name="validation", share=share)


def require_share(share: float, *, held: int, trained: int) -> None:
    """Raises if the validation side of a split has nothing."""
    if not held:
        seen = f"data.validation: {100 * share:.12g}% of {trained:,} training rows is not a single row"
        raise AboardError(data.SHARE, seen)


def open_source(path: str, request: DataCheckRequest) -> OpenedSource:
    """Opens a path in the requested format."""
    what = DataReference(path=path) if Path(path).exists() else DataReference.parse(path)
    spec = SourceSpec(
        path=what.path,
        format=request.format,
        text_column=request.text_column,
        split=what.split,
        config=what.subset,
        revision=what.revision,
    )
    chunks = list_source_chunks(spec)
    try:
        form = detect_format(chunks, format_name=request.format, text_column=request.text_column)
    except AboardError:
        if any(not isinstance(record, InvalidRow) for chunk in chunks for record in read_records(chunk)):
            raise
        # If no row is readable, the format is not the problem: the data check reports the invalid lines.
        form = RowFormat(name="text", why="no row can be read", columns=())
    return OpenedSource(path=path, chunks=chunks, format=form)


def _build_settings(request: DataCheckRequest, inspector: TokenizerInspector | None) -> EncodingSettings:
    if inspector is None:
        return EncodingSettings(max_length=request.max_length, loss_on=request.loss_on)
    return inspector.settings(str(request.tokenizer), max_length=request.max_length)
