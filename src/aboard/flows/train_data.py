"""The data of a training: token shards and bins, made once for the same files, and the gate's word on them."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from aboard.config.data import SourceWords
from aboard.config.train import TrainWords
from aboard.core.training import DataPart
from aboard.data.feed.bins import Packing, data_identity
from aboard.data.feed.mix import shares
from aboard.data.gate.report import DataReport
from aboard.data.tokens.encode import Encoder, LossOn
from aboard.data.workshop.counting import Progress as Tokenized
from aboard.data.workshop.prepare import Prepared, Source, prepare
from aboard.diagnoses import Severity
from aboard.flows.data import Question, Ready, judged, known_codes, opened_as
from aboard.lazy import dataclass

__all__ = ["Part", "Stock", "Tokenized", "stock"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One set of token shards and its bins on this machine, and what is in them; `sequences` are the bins.

    `weight` is its part of a mix, `share` the same as a part of 1; None where all sequences come once an epoch.
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
class Stock:
    """What will be trained on, and what the gate says of it. `vocabulary` is how many tokens the tokenizer has.

    `identity` is a hash of what `data` holds.
    """

    data: tuple[Part, ...]
    validation: Part | None
    report: DataReport
    vocabulary: int
    identity: str

    @property
    def shut(self) -> bool:
        return any(finding.severity is Severity.BLOCK for finding in self.report.findings)


def stock(
    words: TrainWords,
    tokenizer: str,
    cache: Path,
    *,
    template: str | None,
    on_progress: Callable[[Tokenized], None] = lambda _far: None,
) -> Stock:
    """Rows are read once, on all cores, and never again while their files stay as they are; the gate judges always."""
    question = _question(words, tokenizer, template)
    # Before the long wait.
    known_codes(question.allow)
    parts = _shares(words.data.sources)
    encoder = Encoder(tokenizer, template=template, loss_on=question.loss_on)

    def ready(files: tuple[str, ...]) -> Ready:
        opened = [opened_as(path, question) for path in files]
        sources = [Source(form=each.format, chunks=tuple(each.chunks)) for each in opened]
        packing: Packing = "packed" if words.packing else "padded"
        made = prepare(sources, encoder, cache, max_length=words.max_length, packing=packing, progress=on_progress)
        return Ready(sources=sources, prepared=made)

    data = [ready(source.files) for source in words.data.sources]
    held = ready(words.data.validation) if words.data.validation else None
    made = tuple(
        replace(_part(source.name, each.prepared), weight=source.weight, share=parts.get(source.name))
        for source, each in zip(words.data.sources, data, strict=True)
    )
    return Stock(
        data=made,
        identity=data_identity(
            DataPart(name=part.name, shards=str(part.shards), bins=str(part.bins), weight=part.weight) for part in made
        ),
        validation=None if held is None else _part("validation", held.prepared),
        report=judged(question, encoder, data, held),
        vocabulary=encoder.tokenizer.get_vocab_size(with_added_tokens=True),
    )


def _shares(sources: Sequence[SourceWords]) -> dict[str, float]:
    """Raises where a weight is too small to be held to."""
    weights = {source.name: source.weight for source in sources if source.weight is not None}
    counts = shares(weights) if weights else {}
    return {name: count / sum(counts.values()) for name, count in counts.items()}


def _part(name: str, prepared: Prepared) -> Part:
    shards, bins = prepared.shards.manifest, prepared.bins.manifest
    return Part(
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


def _question(words: TrainWords, tokenizer: str, template: str | None) -> Question:
    return Question(
        files=words.data.files,
        command=shlex.join(["aboard", "data", words.source]),
        format=words.data.format,
        text_column=words.data.text_column,
        tokenizer=tokenizer,
        template=template,
        max_length=words.max_length,
        loss_on=_loss_on(words),
        validation=words.data.validation,
        allow=words.data.allow,
    )


def _loss_on(words: TrainWords) -> LossOn:
    return cast("LossOn", words.data.loss_on or "answers")  # pydantic has looked
