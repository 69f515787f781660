"""The section `data` of aboard.yaml as a value: files found from where the section stands."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aboard.config.document import Written


@dataclass(frozen=True, kw_only=True)
class DataWords:
    """What is written about data; None where nothing is."""

    files: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    format: str | None = None
    text_column: str | None = None
    tokenizer: str | None = None
    template: str | None = None
    max_length: int | None = None
    packing: bool | None = None
    loss_on: str | None = None


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
        files=tuple(_from(written, name, "files", place) for place, name in enumerate(section.files or ())),
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


def _from(written: "Written", name: str, *path: int | str) -> str:
    """Beside the file in which it is written, if it is there; else it may be a name of the hub."""
    beside = Path(written.base("data", *path)) / name
    return str(beside) if beside.exists() else name
