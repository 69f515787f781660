"""The section `data` of aboard.yaml as a value, with resolved paths."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aboard.core.text.data_reference import DataReference, parse_share
from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aboard.config.config_loader import LoadedConfig
    from aboard.config.schema.aboard_yaml import DatasetSection, SourceSection

# The name of the single source of all paths without weights.
DEFAULT_SOURCE_NAME = "data"


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
    # Of the section `train`: whether code that comes with the tokenizer may run.
    trust_remote_code: bool = False
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


def load_data_settings(files: "Sequence[str]") -> DataSettings:
    """The merged section of these files; all defaults if there is none."""
    # Imported here: pydantic takes 100 ms, which files on the command line don't need.
    from aboard.config.config_loader import load_config_files  # noqa: PLC0415

    config = load_config_files(files)
    train = config.document.train
    trusted = train is not None and train.trust_remote_code is True
    settings = replace(build_data_settings(config), trust_remote_code=trusted)
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
        validation=() if share is not None else _list_files(config, section.validation or (), "validation"),
        validation_share=share,
        allow=tuple(section.allow or ()),
        tokenizer=section.tokenizer and _resolve_path(config, section.tokenizer, "tokenizer"),
        template=section.template and str(Path(config.base("data", "template")) / section.template),
        **section.model_dump(include={"format", "text_column", "max_length", "packing", "loss_on"}),
    )


def _build_sources(config: "LoadedConfig", entries: "Sequence[str | SourceSection]") -> tuple[SourceSettings, ...]:
    """One source for all paths; or, if entries have weights (then all have), one per entry."""
    if not any(not isinstance(entry, str) and entry.weight is not None for entry in entries):
        files = _list_files(config, entries, "files")
        return (SourceSettings(name=DEFAULT_SOURCE_NAME, files=files),) if files else ()
    return tuple(
        SourceSettings(name=entry.source_name, files=_list_entry_files(config, entry, "files", at), weight=entry.weight)
        for at, entry in enumerate(entries)
        if not isinstance(entry, str)
    )


def _list_files(config: "LoadedConfig", entries: "Sequence[str | DatasetSection]", key: str) -> tuple[str, ...]:
    return tuple(file for at, entry in enumerate(entries) for file in _list_entry_files(config, entry, key, at))


def _list_entry_files(config: "LoadedConfig", entry: "str | DatasetSection", *place: int | str) -> tuple[str, ...]:
    """The paths of an entry, each with its split, subset and revision (see DataReference)."""
    if isinstance(entry, str):
        return (_resolve_path(config, entry, *place),)
    choice = DataReference(path="", split=entry.split, subset=entry.subset, revision=entry.revision)
    return tuple(
        str(replace(choice, path=_resolve_path(config, name, *place, "path", at))) for at, name in enumerate(entry.path)
    )


def _resolve_path(config: "LoadedConfig", name: str, *path: int | str) -> str:
    """The path next to the file that names it; the name itself if it may be on the hub."""
    local = Path(config.base("data", *path)) / name
    reference = DataReference.parse(name)
    if not local.exists() and reference.path != name:
        return str(replace(reference, path=_resolve_path(config, reference.path, *path)))
    # In an existing directory, it is missing there, and not a name on the hub.
    beside = "/" in name and local.parent.is_dir()
    return str(local) if local.exists() or beside else name
