"""The sections `train` and `data` of aboard.yaml as one value: what will be used, and where each of it comes from."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from aboard.config.data import DataWords, data_words
from aboard.config.document import Written, load_document
from aboard.config.problems import line_of
from aboard.config.train_refusals import refusals
from aboard.config.train_section import TrainSection
from aboard.core.training import DataPart, Training
from aboard.diagnoses import InputError, Problem, training
from aboard.lazy import dataclass

DEFAULT_FILE = "aboard.yaml"
OUTPUT = "output"
MAX_LENGTH = 2048
CONFIG = "config.json"
# Two ways to say the same: one that is typed wins over the other one in a file.
ALTERNATIVES = (
    ("num_train_epochs", "max_steps"),
    ("warmup_steps", "warmup_ratio"),
    ("gradient_accumulation_steps", "global_batch_size"),
)
BF16 = "default: true on GPUs that can, false on CPUs"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One setting: `value` None is one that isn't used, or that is chosen when the nodes are known."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True, kw_only=True)
class TrainWords:
    """A training as it is written. Paths are this machine's; `model` may be a name of the hub still.

    `bf16` None is for the nodes to say. `given` are the names that the user wrote.
    """

    data: DataWords
    model: str
    tokenizer: str
    output_dir: str
    max_length: int
    packing: bool
    bf16: bool | None
    settings: Mapping[str, Any]
    given: frozenset[str]
    choices: tuple[Choice, ...]
    source: str

    def training(
        self, *, model: str, tokenizer: str, data: Sequence[DataPart], validation: Sequence[DataPart], bf16: bool
    ) -> Training:
        """Settled, with the paths that ranks will read."""
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


def load_training(files: Sequence[str], sets: Sequence[str] = ()) -> TrainWords:
    """What these files say together, overridden by `sets`; raises InputError with all that can't be."""
    written = load_document(files, sets)
    section = _typed_over(written, written.document.train or TrainSection())
    written = replace(written, document=written.document.model_copy(update={"train": section}))
    data = data_words(written)
    problems = [*_needed(written, section, data), *refusals(written, section, data)]
    if problems:
        raise InputError(training.CONFIG, sorted(problems, key=lambda problem: line_of(problem.where)))
    return _words(written, section, data)


def _typed_over(written: Written, section: TrainSection) -> TrainSection:
    """The section without what stands in a file and has an alternative on the command line."""
    for pair in ALTERNATIVES:
        there = [name for name in pair if getattr(section, name) is not None]
        filed = [name for name in there if not written.where("train", name).startswith("--set ")]
        if len(there) > len(filed) == 1:
            section = section.model_copy(update={filed[0]: None})
    return section


def _needed(written: Written, section: TrainSection, data: DataWords) -> list[Problem]:
    problems = []
    here = written.tree.where.rsplit(":", 2)[0] or DEFAULT_FILE
    if section.model is None:
        fix = training.CONFIG.fix("model")
        problems.append(Problem(where=here, seen="train.model is not given", fix=fix))
    elif _is_path(section.model) and not Path(_beside(written, section.model, "model")).exists():
        seen = f"train.model: there is no {section.model} beside this file"
        fix = training.CONFIG.fix("no-model")
        problems.append(Problem(where=written.where("train", "model"), seen=seen, fix=fix))
    if not data.files:
        fix = training.CONFIG.fix("files")
        problems.append(Problem(where=here, seen="data.files are not given", fix=fix))
    return problems


def _words(written: Written, section: TrainSection, data: DataWords) -> TrainWords:
    given = {name for name in section.model_fields_set if getattr(section, name) is not None}
    defaults = {field.name: field.default for field in fields(Training) if field.default is not MISSING}
    settings: dict[str, Any] = {}
    for name in TrainSection.model_fields:
        if name in defaults and name != "bf16":
            settings[name] = getattr(section, name) if name in given else defaults[name]
    if "max_steps" in given:
        settings["num_train_epochs"] = defaults["num_train_epochs"]
    model = _model(_beside(written, section.model or "", "model"))
    tokenizer = data.tokenizer or model
    output = str(Path(written.base("train", "output_dir"), section.output_dir or OUTPUT).absolute())
    resume = settings["resume"]
    if resume not in ("auto", "none"):
        settings["resume"] = str(Path(written.base("train", "resume"), resume).absolute())
    found = TrainWords(
        data=data,
        model=model,
        tokenizer=tokenizer,
        output_dir=output,
        max_length=data.max_length or MAX_LENGTH,
        packing=data.packing is not False,
        bf16=section.bf16,
        settings=settings,
        given=frozenset(given),
        choices=(),
        source=written.tree.where.rsplit(":", 2)[0],
    )
    return _with_choices(found, written)


def _with_choices(words: TrainWords, written: Written) -> TrainWords:
    """In the order of the sections, so that it can be read beside the file."""
    data = {
        "files": _shown(words.data),
        **{name: getattr(words.data, name) or None for name in ("validation", "format", "text_column")},
        "tokenizer": words.tokenizer,
        "template": words.data.template,
        "max_length": words.max_length,
        "packing": words.packing,
        "loss_on": words.data.loss_on or "answers",
        "allow": words.data.allow or None,
    }
    train = {
        "model": words.model,
        "from_scratch": words.settings["from_scratch"],
        "output_dir": words.output_dir,
        **words.settings,
    }
    train["bf16"] = words.bf16
    unused = {f"train.{name}": why for name, why in _unused(words).items() if name not in words.given}
    choices = []
    for section, values in (("data", data), ("train", train)):
        for name, value in values.items():
            whole = f"{section}.{name}"
            source = unused.get(whole) or _source(written, section, name)
            choices.append(Choice(name=whole, value=None if whole in unused else value, source=source))
    return replace(words, choices=tuple(choices))


def _shown(data: DataWords) -> tuple[Any, ...] | None:
    """As it could be written: paths, or mappings where there are weights."""
    if any(source.weight is not None for source in data.sources):
        return tuple({"name": each.name, "path": each.files, "weight": each.weight} for each in data.sources)
    return data.files or None


def _unused(words: TrainWords) -> dict[str, str]:
    """Settings that another one leaves nothing to say, and why."""
    found = {}
    if "max_steps" in words.given:
        found["num_train_epochs"] = "not used: max_steps says how long"
    if "global_batch_size" in words.given:
        found["gradient_accumulation_steps"] = "derived: from global_batch_size and the number of ranks"
    found["warmup_steps" if "warmup_ratio" in words.given else "warmup_ratio"] = "not used: the other warmup is"
    if words.settings["lr_scheduler_type"] != "wsd":
        found["decay_ratio"] = "not used: the schedule is not wsd"
    if words.settings["lr_scheduler_type"] == "constant":
        found["min_lr_ratio"] = "not used: the schedule is constant"
    if not words.data.validation:
        found["per_device_eval_batch_size"] = found["eval_steps"] = "not used: there is no data.validation"
    return found


def _source(written: Written, section: str, name: str) -> str:
    there = getattr(written.document, section)
    if there is not None and getattr(there, name, None) is not None:
        return written.where(section, name)
    derived = {
        "data.tokenizer": "derived: the one beside the model",
        "data.format": "derived: recognised from the rows",
        "data.template": "derived: the tokenizer's own",
        "train.bf16": BF16,
        "train.output_dir": "default, beside the file",
        "train.eval_steps": "default: at the end",
        "train.save_steps": "default: at the end",
        "train.save_total_limit": "default: all are kept",
    }
    return derived.get(f"{section}.{name}", "default")


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~"))


def _beside(written: Written, name: str, *path: str) -> str:
    """Beside the file in which it is written, if it is there; else it may be a name of the hub."""
    beside = Path(written.base("train", *path), Path(name).expanduser())
    return str(beside.absolute()) if beside.exists() else name


def _model(path: str) -> str:
    """A config.json stands for the directory that it is in."""
    return str(Path(path).parent) if Path(path).name == CONFIG and Path(path).is_file() else path
