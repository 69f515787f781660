"""The data of a training: through the gate first, then to token shards and bins, both once for the same files."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import cast

from aboard.config.train import TrainWords
from aboard.core.finding import Severity
from aboard.data.counting import Progress
from aboard.data.durable import write_whole
from aboard.data.encode import Encoder, LossOn
from aboard.data.prepare import Prepared, Source, prepare
from aboard.data.read import format_of
from aboard.data.report import DataReport
from aboard.data.sources import SourceSpec, sources
from aboard.flows.data import Progress as Reading
from aboard.flows.data import Question, look

# Counts what changes a verdict of the gate for the same files.
_EDITION = 1


@dataclass(frozen=True, kw_only=True)
class Part:
    """One set of token shards and its bins on this machine, and what is in them; `sequences` are the bins."""

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


@dataclass(frozen=True, kw_only=True)
class Stock:
    """What will be trained on; nothing where the gate is shut.

    `report` is None where the gate was open for these very files before. `vocabulary` is how many tokens there are.
    """

    data: Part | None
    validation: Part | None
    report: DataReport | None
    vocabulary: int | None = None


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Who looks on while rows are read and tokenized."""

    reading: Callable[[Reading], None] = lambda _far: None
    preparing: Callable[[Progress], None] = lambda _far: None


def stock(words: TrainWords, tokenizer: str, cache: Path, *, template: str | None, watch: Watch) -> Stock:
    """Nothing is prepared while the gate is shut."""
    question = _question(words, tokenizer, template)
    passed = cache / "gates" / _ticket(question)
    report = None
    if not passed.is_file():
        report = look(question, watch.reading)
        if any(finding.severity is Severity.BLOCK for finding in report.findings):
            return Stock(data=None, validation=None, report=report)
        passed.parent.mkdir(parents=True, exist_ok=True)
        write_whole(passed, json.dumps({"rows": report.tally.rows}), sync=False)
    encoder = Encoder(tokenizer, template=template, loss_on=question.loss_on)

    def made(name: str, files: tuple[str, ...]) -> Part:
        prepared = prepare(
            [_source(path, words) for path in files],
            encoder,
            cache,
            max_length=words.max_length,
            packing="packed" if words.packing else "padded",
            progress=watch.preparing,
        )
        return _part(name, prepared)

    return Stock(
        data=made("data", words.data.files),
        validation=made("validation", words.data.validation) if words.data.validation else None,
        report=report,
        vocabulary=encoder.tokenizer.get_vocab_size(with_added_tokens=True),
    )


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
        command=f"aboard data {words.source}",
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


def _source(path: str, words: TrainWords) -> Source:
    spec = SourceSpec(path=path, format=words.data.format, text_column=words.data.text_column)
    chunks = tuple(sources(spec))
    return Source(form=format_of(chunks, given=spec.format, text_column=spec.text_column), chunks=chunks)


def _ticket(question: Question) -> str:
    """A name for these files as they are now, on these terms: the gate needn't look at the same twice."""
    files = {path: _stamps(path) for path in (*question.files, *question.validation)}
    asked: Mapping[str, object] = {
        **vars(question),
        "command": "",
        "show": 0,
        "tokenizer": _stamps(str(question.tokenizer)),
    }
    told = json.dumps([_EDITION, asked, files], sort_keys=True, default=str)
    return f"{blake2b(told.encode(), digest_size=16).hexdigest()}.json"


def _stamps(path: str) -> list[tuple[str, int, int]]:
    """Of every file below a path; what is the hub's is known by its name."""
    top = Path(path)
    files = sorted(top.rglob("*")) if top.is_dir() else [top]
    return [(str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
