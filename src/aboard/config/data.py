"""The section `data` of aboard.yaml as a value: files found from where the section stands."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aboard.lazy import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aboard.config.document import Written
    from aboard.config.sections import SourceSection

# The name of the one source that all paths are where they have no weights.
ALL = "data"


@dataclass(frozen=True, kw_only=True)
class SourceWords:
    """Files that are prepared together; `weight` None takes each of their sequences once an epoch."""

    name: str
    files: tuple[str, ...]
    weight: float | None = None


@dataclass(frozen=True, kw_only=True)
class DataWords:
    """What is written about data; None where nothing is. There are several `sources` only where they have weights."""

    sources: tuple[SourceWords, ...] = ()
    validation: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    format: str | None = None
    text_column: str | None = None
    tokenizer: str | None = None
    template: str | None = None
    max_length: int | None = None
    packing: bool | None = None
    loss_on: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Of all sources, in their order."""
        return tuple(file for source in self.sources for file in source.files)


def load_data(files: "Sequence[str]") -> DataWords:
    """The section of these files taken together; nothing is given where there is none."""
    # Not at the top: pydantic takes 100 ms to import, which files that are named needn't wait for.
    from aboard.config.document import load_document  # noqa: PLC0415

    written = load_document(files)
    words = data_words(written)
    train = written.document.train
    if words.tokenizer is None and train is not None and train.model is not None:
        # As training has it: the one beside the model.
        beside = Path(written.base("train", "model")) / train.model
        return replace(words, tokenizer=str(beside) if beside.is_dir() else train.model)
    return words


def data_words(written: "Written") -> DataWords:
    section = written.document.data
    if section is None:
        return DataWords()
    return DataWords(
        sources=_sources(written, section.files or ()),
        validation=tuple(_from(written, name, "validation", at) for at, name in enumerate(section.validation or ())),
        allow=tuple(section.allow or ()),
        format=section.format,
        text_column=section.text_column,
        tokenizer=section.tokenizer and _from(written, section.tokenizer, "tokenizer"),
        template=section.template and str(Path(written.base("data", "template")) / section.template),
        max_length=section.max_length,
        packing=section.packing,
        loss_on=section.loss_on,
    )


def source_name(path: str) -> str:
    """What a source is called that was given no name: its file or directory, without what tells the format."""
    last = Path(path).name
    return last.split(".")[0] or last or path


def _sources(written: "Written", entries: "Sequence[str | SourceSection]") -> tuple[SourceWords, ...]:
    """One of all paths; or one of each entry, where they have weights: then all of them have."""
    paths = [_from(written, entry, "files", at) for at, entry in enumerate(entries) if isinstance(entry, str)]
    if paths:
        return (SourceWords(name=ALL, files=tuple(paths)),)
    return tuple(
        SourceWords(
            name=entry.name or source_name(entry.path[0]),
            files=tuple(_from(written, name, "files", at, "path", place) for place, name in enumerate(entry.path)),
            weight=entry.weight,
        )
        for at, entry in enumerate(entries)
        if not isinstance(entry, str)
    )


def _from(written: "Written", name: str, *path: int | str) -> str:
    """Beside the file in which it is written, if it is there; else it may be a name of the hub."""
    beside = Path(written.base("data", *path)) / name
    return str(beside) if beside.exists() else name
