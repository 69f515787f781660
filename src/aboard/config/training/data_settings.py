"""The section `data` of aboard.yaml as a value, with resolved paths."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aboard.config.config_loader import LoadedConfig
    from aboard.config.schema.aboard_yaml import SourceSection

# The name of the single source of all paths without weights.
DEFAULT_SOURCE_NAME = "data"
_PERCENT = re.compile(r"\d{1,3}(?:\.\d{1,9})?%")


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """Files that are prepared together; with `weight` None, each of their sequences is used once per epoch."""

    name: str
    files: tuple[str, ...]
    weight: float | None = None


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The data settings; None where not set. There are several `sources` only if they have weights."""

    sources: tuple[SourceSettings, ...] = ()
    validation: tuple[str, ...] = ()
    # The fraction of the training rows that is the validation set, instead of files.
    validation_share: float | None = None
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
        """The files of all sources, in order."""
        return tuple(file for source in self.sources for file in source.files)

    @property
    def has_validation(self) -> bool:
        return bool(self.validation) or self.validation_share is not None


def parse_share(names: "Sequence[str]") -> float | None:
    """The fraction that a single `2%` stands for; None for files. It may be out of range."""
    return float(names[0][:-1]) / 100 if len(names) == 1 and _PERCENT.fullmatch(names[0]) else None


def format_share(share: float) -> str:
    """As `parse_share` reads it."""
    return f"{100 * share:.12g}%"


def load_data_settings(files: "Sequence[str]") -> DataSettings:
    """The merged section of these files; all defaults if there is none."""
    # Imported here: pydantic takes 100 ms, which files on the command line don't need.
    from aboard.config.config_loader import load_config_files  # noqa: PLC0415

    config = load_config_files(files)
    settings = build_data_settings(config)
    train = config.document.train
    if settings.tokenizer is None and train is not None and train.model is not None:
        # As in training: the tokenizer in the model's directory.
        local = Path(config.base("train", "model")) / train.model
        return replace(settings, tokenizer=str(local) if local.is_dir() else train.model)
    return settings


def build_data_settings(config: "LoadedConfig") -> DataSettings:
    section = config.document.data
    if section is None:
        return DataSettings()
    share = parse_share(section.validation or ())
    return DataSettings(
        sources=_build_sources(config, section.files or ()),
        validation=tuple(
            _resolve_path(config, name, "validation", at)
            for at, name in enumerate(section.validation or ())
            if share is None
        ),
        validation_share=share,
        allow=tuple(section.allow or ()),
        format=section.format,
        text_column=section.text_column,
        tokenizer=section.tokenizer and _resolve_path(config, section.tokenizer, "tokenizer"),
        template=section.template and str(Path(config.base("data", "template")) / section.template),
        max_length=section.max_length,
        packing=section.packing,
        loss_on=section.loss_on,
    )


def _build_sources(config: "LoadedConfig", entries: "Sequence[str | SourceSection]") -> tuple[SourceSettings, ...]:
    """One source for all paths; or, if entries have weights (then all have), one per entry."""
    paths = [_resolve_path(config, entry, "files", at) for at, entry in enumerate(entries) if isinstance(entry, str)]
    if paths:
        return (SourceSettings(name=DEFAULT_SOURCE_NAME, files=tuple(paths)),)
    return tuple(
        SourceSettings(
            name=entry.source_name,
            files=tuple(
                _resolve_path(config, name, "files", at, "path", place) for place, name in enumerate(entry.path)
            ),
            weight=entry.weight,
        )
        for at, entry in enumerate(entries)
        if not isinstance(entry, str)
    )


def _resolve_path(config: "LoadedConfig", name: str, *path: int | str) -> str:
    """The path next to the file that names it if that exists; otherwise the name, which may be on the hub."""
    local = Path(config.base("data", *path)) / name
    return str(local) if local.exists() else name
