"""The section `data` of aboard.yaml as a value: files found from where the section stands."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aboard.config.config_loader import LoadedConfig
    from aboard.config.schema.aboard_yaml import SourceSection

# The name of the one source that all paths are where they have no weights.
DEFAULT_SOURCE_NAME = "data"


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """Files that are prepared together; `weight` None takes each of their sequences once an epoch."""

    name: str
    files: tuple[str, ...]
    weight: float | None = None


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What is written about data; None where nothing is. There are several `sources` only where they have weights."""

    sources: tuple[SourceSettings, ...] = ()
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


def load_data_settings(files: "Sequence[str]") -> DataSettings:
    """The section of these files taken together; nothing is given where there is none."""
    # Not at the top: pydantic takes 100 ms to import, which files that are named needn't wait for.
    from aboard.config.config_loader import load_config_files  # noqa: PLC0415

    config = load_config_files(files)
    settings = build_data_settings(config)
    train = config.document.train
    if settings.tokenizer is None and train is not None and train.model is not None:
        # As training has it: the one beside the model.
        beside = Path(config.base("train", "model")) / train.model
        return replace(settings, tokenizer=str(beside) if beside.is_dir() else train.model)
    return settings


def build_data_settings(config: "LoadedConfig") -> DataSettings:
    section = config.document.data
    if section is None:
        return DataSettings()
    return DataSettings(
        sources=_build_sources(config, section.files or ()),
        validation=tuple(
            _resolve_path(config, name, "validation", at) for at, name in enumerate(section.validation or ())
        ),
        allow=tuple(section.allow or ()),
        format=section.format,
        text_column=section.text_column,
        tokenizer=section.tokenizer and _resolve_path(config, section.tokenizer, "tokenizer"),
        template=section.template and str(Path(config.base("data", "template")) / section.template),
        max_length=section.max_length,
        packing=section.packing,
        loss_on=section.loss_on,
    )


def derive_source_name(path: str) -> str:
    """What a source is called that was given no name: its file or directory, without what tells the format."""
    last = Path(path).name
    return last.split(".")[0] or last or path


def _build_sources(config: "LoadedConfig", entries: "Sequence[str | SourceSection]") -> tuple[SourceSettings, ...]:
    """One of all paths; or one of each entry, where they have weights: then all of them have."""
    paths = [_resolve_path(config, entry, "files", at) for at, entry in enumerate(entries) if isinstance(entry, str)]
    if paths:
        return (SourceSettings(name=DEFAULT_SOURCE_NAME, files=tuple(paths)),)
    return tuple(
        SourceSettings(
            name=entry.name or derive_source_name(entry.path[0]),
            files=tuple(
                _resolve_path(config, name, "files", at, "path", place) for place, name in enumerate(entry.path)
            ),
            weight=entry.weight,
        )
        for at, entry in enumerate(entries)
        if not isinstance(entry, str)
    )


def _resolve_path(config: "LoadedConfig", name: str, *path: int | str) -> str:
    """Beside the file in which it is written, if it is there; else it may be a name of the hub."""
    beside = Path(config.base("data", *path)) / name
    return str(beside) if beside.exists() else name
