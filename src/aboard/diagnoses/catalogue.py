"""All diagnoses by code, and the decoding of errors that come from another process.

A process sends a code and named values, never the text of a fix: a script, model or node that forges an error can't
choose what people paste. The receiver fills in the fix from our own templates.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.errors import AboardError
from aboard.diagnoses.fixes import NO_FIX, Fix
from aboard.diagnoses.nodes import unanswered_probes
from aboard.diagnoses.output_patterns import OutputPattern, PatternSource
from aboard.diagnoses.untrusted import escape_lines, escape_text
from aboard.lazy_dataclass import dataclass

KnownMessage: TypeAlias = tuple[Diagnosis, OutputPattern]
# Errors of more than one command have no command that looks for them.
ANY_COMMAND = "aboard"


@dataclass(frozen=True)
class Topic:
    """What codes are about: the modules below `aboard` that declare them, imported by name when a code is looked up.

    A check of the doctor brings its title, probes and rules as the `SUBJECT` of its own package; anything else has its
    `title`, and `command` is what finds it or shows it again.
    """

    name: str
    families: tuple[str, ...]
    title: str = ""
    command: str = ""


TOPICS: tuple[Topic, ...] = (
    Topic("reach", ("diagnoses.nodes.reach", "diagnoses.slurm.steps", "diagnoses.nodes.unanswered_probes")),
    Topic("slurm", ("diagnoses.slurm.jobs",)),
    *(Topic(name, (f"doctor.{name}.diagnoses",)) for name in ("host", "network", "fabric", "gpu", "compute")),
    Topic("container", ("doctor.container.inside_diagnoses",)),
    *(Topic(name, (f"doctor.{name}.diagnoses",)) for name in ("software", "storage", "collective")),
    Topic("trust", ("diagnoses.nodes.trust",), "this machine can log in to every node", "aboard trust"),
    Topic(
        "run",
        (
            "diagnoses.runs.death",
            "doctor.container.image_diagnoses",
            "doctor.container.diagnoses",
            *(f"doctor.{name}.diagnoses" for name in ("hang", "start", "slow", "loss", "nccl_ras", "external_jobs")),
        ),
        "every rank exits successfully",
        "aboard why RUN",
    ),
    Topic(
        "log",
        (
            "doctor.logs.diagnoses",
            *(f"doctor.logs.{source}_messages" for source in ("collective", "launcher", "program")),
        ),
        "logs from any launcher",
        "aboard why --log FILE",
    ),
    Topic("data", ("trainer.diagnoses.data_quality",), "the data is fit for training", "aboard data FILE…"),
    # Some of the next topic's, which are checked before a training.
    Topic("train", ()),
    Topic(
        "training",
        ("trainer.diagnoses.training", "trainer.diagnoses.adapter"),
        "the training starts and makes progress",
        "aboard train",
    ),
    Topic("model", ("trainer.diagnoses.model_loading",), "every rank can load the model", "aboard train"),
    Topic(
        "checkpoint",
        ("trainer.diagnoses.checkpoint", "diagnoses.runs.checkpoints"),
        "checkpoints are saved, found and exported",
        "aboard train",
    ),
    Topic("spread", ("diagnoses.files.file_sync",), "every node has the files that ranks read", "aboard sync"),
    Topic(
        "env",
        ("diagnoses.usage.environment_sync",),
        "every node has the head's Python environment",
        "aboard sync --env",
    ),
    Topic(
        "fetch", ("diagnoses.files.file_fetch",), "files on the nodes can be copied here", "aboard export RUN --to DIR"
    ),
    Topic(
        "preparing",
        ("trainer.diagnoses.data", "diagnoses.files.local_files"),
        "data can be read and prepared",
        "aboard data FILE…",
    ),
    Topic("files", ("diagnoses.usage.configuration",), "aboard.yaml and other files are valid", ANY_COMMAND),
    Topic(
        "commands",
        (
            *(f"diagnoses.usage.{name}" for name in ("commands", "planning", "pasted_commands", "captured_scripts")),
            "diagnoses.slurm.allocation",
            "diagnoses.slurm.submission",
        ),
        "commands and their arguments are valid",
        ANY_COMMAND,
    ),
    Topic(
        "runs",
        ("diagnoses.usage.run_records", "diagnoses.slurm.remote_runs", "diagnoses.nodes.agent_protocol"),
        "a run can be found, described and stopped",
        ANY_COMMAND,
    ),
    Topic("notify", ("diagnoses.usage.messages",), "messages about runs arrive", "aboard check"),
    Topic("sandbox", ("diagnoses.usage.sandbox",), "the practice cluster works", "aboard sandbox"),
)
_SEEN, _VALUE, _VALUES = 8000, 4096, 32
_PROBE = re.compile(r"[a-z0-9-]{1,40}")


def list_families() -> tuple[str, ...]:
    """The names of all modules that declare diagnoses."""
    return tuple(f"aboard.{family}" for topic in TOPICS for family in topic.families)


def list_declaring_files() -> Iterator[str]:
    """The files of other rooms that looking up a code imports, below the package: for a copy that has nothing else."""
    for *packages, module in (family.split(".") for topic in TOPICS for family in topic.families):
        if packages[0] != "diagnoses":
            yield from ("/".join([*packages[: depth + 1], "__init__.py"]) for depth in range(len(packages)))
            yield "/".join([*packages, f"{module}.py"])


@cache
def all_diagnoses() -> Mapping[str, Diagnosis]:
    """All diagnoses by code; a duplicate code is a bug."""
    found: dict[str, Diagnosis] = {}
    for name in list_families():
        for diagnosis in list_diagnoses(import_module(name)):
            if found.setdefault(diagnosis.code, diagnosis) is not diagnosis:
                raise ValueError(f"two diagnoses have the code {diagnosis.code}")
    return found


@cache
def list_output_patterns(source: PatternSource, *families: ModuleType) -> tuple[KnownMessage, ...]:
    """Each message from one of these sources with its diagnosis, in matching order; of all families by default.

    The order depends on declared numbers and codes only, never on the order of modules or declarations.
    """
    known = [each for family in families for each in list_diagnoses(family)] or all_diagnoses().values()
    by_code = {diagnosis.code: diagnosis for diagnosis in known}
    found = [
        (diagnosis, message)
        for _code, diagnosis in sorted(by_code.items())
        for message in diagnosis.messages
        if source & message.source
    ]
    return tuple(sorted(found, key=_get_precedence))


def _get_precedence(known: KnownMessage) -> tuple[int, int]:
    diagnosis, message = known
    own = message.precedence
    return diagnosis.precedence if own is None else own, -message.weight


def recall_diagnosis(code: str) -> Diagnosis:
    """The diagnosis of a recorded code; an unknown code gives a diagnosis with nothing but the code."""
    known = _find_diagnosis(code)
    return known or Diagnosis(code=escape_text(code), title="", explanation="")


def recall_fix(code: str, text: str) -> Fix:
    """A recorded fix; none for an unknown code, since anybody may have written it."""
    return Fix(escape_lines(text[:_SEEN])) if _find_diagnosis(code) else NO_FIX


def _find_diagnosis(code: str) -> Diagnosis | None:
    # Each probe has such a diagnosis, by its name.
    probe = code.removeprefix("unknown-")
    return all_diagnoses().get(code) or (
        unanswered_probes.declare_unanswered(probe) if probe != code and _PROBE.fullmatch(probe) else None
    )


def list_diagnoses(family: ModuleType) -> tuple[Diagnosis, ...]:
    """The diagnoses that a module declares, in order."""
    return tuple(value for value in vars(family).values() if isinstance(value, Diagnosis))


def unpack_error(packed: object) -> AboardError | None:
    """Decodes an error, with a fix from our own templates; None unless its code is declared."""
    if not isinstance(packed, Mapping) or not isinstance(packed.get("code"), str):
        return None
    diagnosis = all_diagnoses().get(packed["code"])
    if diagnosis is None or not isinstance(packed.get("seen"), str):
        return None
    return AboardError(diagnosis, escape_lines(packed["seen"][:_SEEN]), fix=_unpack_fix(diagnosis, packed))


def read_error(text: str) -> AboardError | None:
    """Decodes an error from JSON; see `unpack_error`."""
    try:
        return unpack_error(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _unpack_fix(diagnosis: Diagnosis, packed: Mapping[str, Any]) -> Fix:
    values, variant = packed.get("values"), packed.get("variant", "")
    if not isinstance(values, Mapping) or len(values) > _VALUES or variant not in diagnosis.templates:
        return NO_FIX
    try:
        # A shell fragment becomes one word: here it is text from another process.
        return diagnosis.fix(variant, **{str(name): _clean_value(value) for name, value in values.items()})
    except (KeyError, TypeError):
        return NO_FIX


def _clean_value(value: object) -> str | int | float | list[str]:
    if isinstance(value, list):
        return [str(each)[:_VALUE] for each in value[:_VALUE]]
    return value if isinstance(value, (int, float)) else str(value)[:_VALUE]
