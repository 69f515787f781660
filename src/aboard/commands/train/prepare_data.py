"""Prepares the training data: token shards and packed sequences, cached per set of files, and the data check."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from aboard.commands.data.prepare_data import (
    DataCheckRequest,
    PreparedSources,
    open_source,
    report_prepared_data,
    require_share,
    split_sides,
)
from aboard.config.schema.data_settings import SourceSettings
from aboard.core.plan.training_settings import DataPart
from aboard.diagnoses import Severity, Shell
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.quality.data_check import check_allowed_codes
from aboard.trainer.data.quality.data_report import DataReport
from aboard.trainer.data.sampling.packed_sequences import Packing, compute_data_identity
from aboard.trainer.data.sampling.source_mixing import compute_draw_counts
from aboard.trainer.data.sampling.validation_split import SplitSide
from aboard.trainer.data.tokenize_workers.prepare_data import PreparationSource, PreparedData, prepare_data
from aboard.trainer.data.tokenize_workers.tokenize_progress import TokenizeProgress
from aboard.trainer.data.tokens.encoder import Encoder, LossOn
from aboard.trainer.settings.train_settings import TrainSettings

__all__ = ["PreparedDataset", "TokenizeProgress", "TrainingDatasets", "prepare_training_data"]


@dataclass(frozen=True, kw_only=True)
class PreparedDataset:
    """One set of token shards and its packed sequences on this machine, with their statistics.

    `weight` is its weight in a mix, `share` the same as a fraction; None if every sequence is used once per epoch.
    """

    name: str
    shards: Path
    bins: Path
    documents: int
    tokens: int
    supervised: int
    sequences: int
    length: int
    full: float
    cached: bool
    weight: float | None = None
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingDatasets:
    """The training data and the data check's report. `vocabulary` is the number of tokens of the tokenizer.

    `identity` is a hash of the content of `data`.
    """

    data: tuple[PreparedDataset, ...]
    validation: PreparedDataset | None
    report: DataReport
    vocabulary: int
    identity: str

    @property
    def is_blocked(self) -> bool:
        return any(finding.severity is Severity.BLOCK for finding in self.report.findings)


def prepare_training_data(
    config: TrainSettings,
    tokenizer: str,
    cache: Path,
    *,
    template: str | None,
    command: Shell | None = None,
    on_progress: Callable[[TokenizeProgress], None] = lambda _far: None,
) -> TrainingDatasets:
    """Reads rows once, on all cores, and again only when their files change; the data check always runs."""
    check_request = _build_check_request(config, tokenizer, template, command)
    # Fails early, before the slow preparation.
    check_allowed_codes(check_request.allow)
    mix_shares = _compute_shares(config.data.sources)
    encoder = Encoder(
        tokenizer,
        template=template,
        loss_on=check_request.loss_on,
        trust_remote_code=config.settings["trust_remote_code"],
    )

    def prepare_files(files: tuple[str, ...], side: SplitSide | None) -> PreparedSources:
        opened = [open_source(path, check_request) for path in files]
        sources = [PreparationSource(form=each.format, chunks=tuple(each.chunks), part=side) for each in opened]
        packing: Packing = "packed" if config.packing else "padded"
        datasets = prepare_data(
            sources, encoder, cache, max_length=config.max_length, packing=packing, progress=on_progress
        )
        return PreparedSources(sources=sources, prepared=datasets)

    trained, held = split_sides(config.data.validation_share)
    data = [prepare_files(source.files, trained) for source in config.data.sources]
    validation = None
    if config.data.has_validation:
        validation = prepare_files(config.data.validation if held is None else config.data.files, held)
    if held is not None and validation is not None:
        rows = sum(each.prepared.shards.manifest.documents for each in data)
        require_share(held.share, held=len(validation.prepared.bins), trained=rows)
    datasets = tuple(
        replace(_describe_dataset(source.name, each.prepared), weight=source.weight, share=mix_shares.get(source.name))
        for source, each in zip(config.data.sources, data, strict=True)
    )
    return TrainingDatasets(
        data=datasets,
        identity=compute_data_identity(
            DataPart(name=part.name, shards=str(part.shards), bins=str(part.bins), weight=part.weight)
            for part in datasets
        ),
        validation=None if validation is None else _describe_dataset("validation", validation.prepared),
        report=report_prepared_data(check_request, encoder, data, validation),
        vocabulary=encoder.tokenizer.get_vocab_size(with_added_tokens=True),
    )


def _compute_shares(sources: Sequence[SourceSettings]) -> dict[str, float]:
    """Raises if a weight is too small to be met."""
    weights = {source.name: source.weight for source in sources if source.weight is not None}
    counts = compute_draw_counts(weights) if weights else {}
    return {name: count / sum(counts.values()) for name, count in counts.items()}


def _describe_dataset(name: str, prepared: PreparedData) -> PreparedDataset:
    shards, bins = prepared.shards.manifest, prepared.bins.manifest
    return PreparedDataset(
        name=name,
        shards=prepared.shards.folder,
        bins=prepared.bins.folder,
        documents=shards.documents,
        tokens=bins.tokens,
        supervised=bins.supervised,
        sequences=bins.bins,
        length=bins.max_length,
        full=bins.full,
        cached=prepared.cached,
    )


def _build_check_request(
    config: TrainSettings, tokenizer: str, template: str | None, command: Shell | None
) -> DataCheckRequest:
    return DataCheckRequest(
        files=config.data.files,
        command=shlex.join(["aboard", "data", config.source]),
        training=command,
        format=config.data.format,
        text_column=config.data.text_column,
        tokenizer=tokenizer,
        template=template,
        max_length=config.max_length,
        loss_on=cast("LossOn", config.data.loss_on or "answers"),  # validated by pydantic
        validation=config.data.validation,
        validation_share=config.data.validation_share,
        allow=config.data.allow,
    )
