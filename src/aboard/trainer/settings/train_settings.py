"""The sections `train` and `data` of aboard.yaml as one value: effective settings, and where each comes from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from aboard.config.config_loader import LoadedConfig, build_recovery_request, load_config_files
from aboard.config.schema.data_settings import DataSettings, build_data_settings
from aboard.config.schema.train_section import AdapterSection, TrainSection
from aboard.config.validation_problems import parse_position
from aboard.core.plan.setting_conflicts import find_conflicts
from aboard.core.plan.training_settings import DEFAULT_OUTPUT_DIR, TRAIN_SETTINGS, Adapter, DataPart, Training
from aboard.core.run.recovery.recovery_request import RecoveryRequest
from aboard.core.text.data_reference import format_share
from aboard.core.text.hub_names import is_path
from aboard.diagnoses import InputError, Problem
from aboard.lazy_dataclass import dataclass
from aboard.trainer.diagnoses import training
from aboard.trainer.settings.adapter_files import read_adapter_config

DEFAULT_FILE = "aboard.yaml"
MAX_LENGTH = 2048
CONFIG = "config.json"


@dataclass(frozen=True, kw_only=True)
class ResolvedSetting:
    """One setting; `value` is None if it is unused, or chosen once the nodes are known."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The training settings of the user. Paths are those of this machine; `model` may still be a hub name.

    `bf16` None means that the nodes decide. `given` are the keys that the user set.
    """

    data: DataSettings
    model: str
    tokenizer: str
    output_dir: str
    max_length: int
    packing: bool
    bf16: bool | None
    settings: Mapping[str, Any]
    given: frozenset[str]
    choices: tuple[ResolvedSetting, ...]
    source: str
    recovery: RecoveryRequest = RecoveryRequest()

    def training(
        self, *, model: str, tokenizer: str, data: Sequence[DataPart], validation: Sequence[DataPart], bf16: bool
    ) -> Training:
        """The final settings, with the paths that ranks will read."""
        return Training(
            model=model,
            tokenizer=tokenizer,
            data=tuple(data),
            validation=tuple(validation),
            output_dir=self.output_dir,
            max_length=self.max_length,
            bf16=bf16,
            **self.settings,
        )


def load_train_settings(files: Sequence[str], sets: Sequence[str] = ()) -> TrainSettings:
    """The merged settings of these files, overridden by `sets`; raises InputError with all problems."""
    config = load_config_files(files, sets)
    section = _drop_overridden(config, config.document.train or TrainSection())
    config = replace(config, document=config.document.model_copy(update={"train": section}))
    data = build_data_settings(config)
    problems = [*_find_missing(config, section, data), *_find_refused(config, section, data)]
    if problems:
        raise InputError(training.CONFIG, sorted(problems, key=lambda problem: parse_position(problem.where)))
    return _build_settings(config, section, data)


def _drop_overridden(config: LoadedConfig, section: TrainSection) -> TrainSection:
    """The section without keys in a file whose alternative is on the command line."""
    for one, setting in TRAIN_SETTINGS.items():
        keys = [name for name in (one, setting.alternative) if name and getattr(section, name) is not None]
        from_file = [name for name in keys if not config.where("train", name).startswith("--set ")]
        if len(keys) > len(from_file) == 1:
            section = section.model_copy(update={from_file[0]: None})
    if section.max_steps is not None:
        # As in HF: steps count, and epochs don't.
        section = section.model_copy(update={"num_train_epochs": None})
    return section


def _find_missing(config: LoadedConfig, section: TrainSection, data: DataSettings) -> Iterator[Problem]:
    here = config.tree.where.rsplit(":", 2)[0] or DEFAULT_FILE
    if section.model is None:
        yield Problem(where=here, seen="train.model is not set", fix=training.CONFIG.fix("model"))
    elif is_path(resolved := _resolve_path(config, section.model, "model")) and not Path(resolved).exists():
        seen = f"train.model: {section.model} does not exist next to this file"
        yield Problem(where=config.where("train", "model"), seen=seen, fix=training.CONFIG.fix("no-model"))
    if not data.files:
        yield Problem(where=here, seen="data.files is not set", fix=training.CONFIG.fix("files"))


def _find_refused(config: LoadedConfig, section: TrainSection, data: DataSettings) -> Iterator[Problem]:
    """Settings that are set although they can't have an effect; a switch that is off is as good as not set."""
    for key, seen, fix, values, _ in find_conflicts(section, has_validation=data.has_validation):
        value = getattr(section, key)
        if seen and value is not None and value is not False:  # 0.0 is a value
            yield Problem(where=config.where("train", key), seen=seen, fix=training.CONFIG.fix(fix, **values))


def _build_settings(config: LoadedConfig, section: TrainSection, data: DataSettings) -> TrainSettings:
    user_keys = {name for name in section.model_fields_set if getattr(section, name) is not None}
    defaults = {field.name: field.default for field in fields(Training) if field.default is not MISSING}
    settings: dict[str, Any] = {}
    for name in TrainSection.model_fields:
        if name in defaults and name != "bf16":
            settings[name] = getattr(section, name) if name in user_keys else defaults[name]
    settings["report_to"] = tuple(settings["report_to"])
    settings["adapter"] = None if section.adapter is None else _build_adapter(config, section.adapter)
    if "max_steps" in user_keys:
        settings["num_train_epochs"] = defaults["num_train_epochs"]
    model = _resolve_model_folder(_resolve_path(config, section.model or "", "model"))
    tokenizer = data.tokenizer or model
    output = str(Path(config.base("train", "output_dir"), section.output_dir or DEFAULT_OUTPUT_DIR).absolute())
    resume = settings["resume"]
    if resume not in ("auto", "none"):
        settings["resume"] = str(Path(config.base("train", "resume"), resume).absolute())
    train_settings = TrainSettings(
        data=data,
        model=model,
        tokenizer=tokenizer,
        output_dir=output,
        max_length=data.max_length or MAX_LENGTH,
        packing=data.packing is not False,
        bf16=False if section.fp16 else section.bf16,
        settings=settings,
        given=frozenset(user_keys),
        choices=(),
        source=config.tree.where.rsplit(":", 2)[0],
        recovery=build_recovery_request(config),
    )
    return _add_choices(train_settings, config)


def _build_adapter(config: LoadedConfig, section: AdapterSection) -> Adapter:
    given = {name: getattr(section, name) for name in section.model_fields_set - {"type"}}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    given = {name: value for name, value in given.items() if value is not None}
    if section.path is None:
        return _check_quantized(config, Adapter(**{"alpha": 2.0 * given.get("r", Adapter().r), **given}))
    folder = Path(config.base("train", "adapter", "path"), section.path).absolute()
    saved = read_adapter_config(folder)
    for name, value in given.items():
        # Dropout is a setting of a training run, not of its adapter.
        if name != "dropout" and name in saved and value != saved[name]:
            seen = f"train.adapter.{name} is {value}, but the adapter in {folder} has {saved[name]}"
            raise InputError.of(training.CONFIG, config.where("train", "adapter", name), seen, "adapter-path")
    return _check_quantized(config, Adapter(**{**saved, **given, "path": str(folder)}))


def _check_quantized(config: LoadedConfig, adapter: Adapter) -> Adapter:
    """Once it is known what an adapter to continue from is."""
    if adapter.load_in_4bit and adapter.use_dora:
        where = config.where("train", "adapter", "load_in_4bit")
        seen = "train.adapter.load_in_4bit has not been proven with DoRA (use_dora)"
        raise InputError.of(training.CONFIG, where, seen, "quantized", key="use_dora")
    return adapter


def _add_choices(settings: TrainSettings, config: LoadedConfig) -> TrainSettings:
    """Adds the effective settings, in the order of the sections in the file."""
    share = settings.data.validation_share
    data = {
        "files": _list_sources(settings.data),
        "validation": settings.data.validation or (share and format_share(share)),
        **{name: getattr(settings.data, name) or None for name in ("format", "text_column")},
        "tokenizer": settings.tokenizer,
        "template": settings.data.template,
        "max_length": settings.max_length,
        "packing": settings.packing,
        "loss_on": settings.data.loss_on or "answers",
        "allow": settings.data.allow or None,
    }
    train = {
        "model": settings.model,
        "from_scratch": settings.settings["from_scratch"],
        "output_dir": settings.output_dir,
        **settings.settings,
    }
    train["bf16"] = settings.bf16
    if train["adapter"] is not None:
        adapter = {
            name: list(value) if isinstance(value, tuple) else value for name, value in vars(train["adapter"]).items()
        }
        train["adapter"] = {name: value for name, value in adapter.items() if value not in (None, [])}
    conflicts = find_conflicts(config.document.train, has_validation=settings.data.has_validation)
    unused = {f"train.{each.key}": each.unused for each in conflicts if each.unused and each.key not in settings.given}
    choices = []
    for section, values in (("data", data), ("train", train)):
        for name, value in values.items():
            full_name = f"{section}.{name}"
            source = unused.get(full_name) or _describe_source(config, section, name)
            choices.append(ResolvedSetting(name=full_name, value=None if full_name in unused else value, source=source))
    return replace(settings, choices=tuple(choices))


def _list_sources(data: DataSettings) -> tuple[Any, ...] | None:
    """The value of data.files: paths, or mappings if they have weights."""
    if any(source.weight is not None for source in data.sources):
        return tuple({"name": each.name, "path": each.files, "weight": each.weight} for each in data.sources)
    return data.files or None


def _describe_source(config: LoadedConfig, section: str, name: str) -> str:
    values = getattr(config.document, section)
    if values is not None and getattr(values, name, None) is not None:
        return config.where(section, name)
    derived = {
        "tokenizer": "derived: from the model's directory",
        "format": "derived: detected from the rows",
        "template": "derived: the tokenizer's own",
    }
    return TRAIN_SETTINGS[name].origin if section == "train" else derived.get(name, "default")


def _resolve_path(config: LoadedConfig, name: str, *path: str) -> str:
    """The path next to the file that names it; the name itself if it may be on the hub."""
    local = Path(config.base("train", *path), Path(name).expanduser())
    # In an existing directory, it is missing there, and not a name on the hub.
    beside = "/" in name and local.parent.is_dir()
    return str(local.absolute()) if local.exists() or beside else name


def _resolve_model_folder(path: str) -> str:
    """A config.json stands for the directory that it is in."""
    return str(Path(path).parent) if Path(path).name == CONFIG and Path(path).is_file() else path
