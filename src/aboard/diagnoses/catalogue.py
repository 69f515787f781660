"""All diagnoses by code, and the decoding of errors that come from another process.

A process sends a code and named values, never the text of a fix: a script, model or node that forges an error can't
choose what people paste. The receiver fills in the fix from our own templates.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any, TypeAlias

import aboard.diagnoses
from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.errors import AboardError
from aboard.diagnoses.fixes import NO_FIX, Fix
from aboard.diagnoses.nodes import unanswered_probes
from aboard.diagnoses.output_patterns import OutputPattern, PatternSource
from aboard.diagnoses.untrusted import escape_lines, escape_text

KnownMessage: TypeAlias = tuple[Diagnosis, OutputPattern]

# What rooms above this one declare, since only they report it; imported by name when a code is looked up.
_DECLARED_ABOVE = (
    *(
        f"aboard.doctor.{subject}.diagnoses"
        for subject in (
            "collective",
            "compute",
            "container",
            "external_jobs",
            "fabric",
            "gpu",
            "hang",
            "host",
            "logs",
            "loss",
            "nccl_ras",
            "network",
            "slow",
            "software",
            "start",
            "storage",
        )
    ),
    "aboard.doctor.container.image_diagnoses",
    "aboard.doctor.container.inside_diagnoses",
    "aboard.doctor.logs.collective_messages",
    "aboard.doctor.logs.launcher_messages",
    "aboard.doctor.logs.program_messages",
    *(
        f"aboard.trainer.diagnoses.{family}"
        for family in ("adapter", "checkpoint", "data", "data_quality", "model_loading", "training")
    ),
)
_SEEN, _VALUE, _VALUES = 8000, 4096, 32
_PROBE = re.compile(r"[a-z0-9-]{1,40}")


def list_families() -> tuple[str, ...]:
    """The names of all modules that declare diagnoses."""
    own = (module.name for module in walk_packages(aboard.diagnoses.__path__, "aboard.diagnoses."))
    return (*own, *_DECLARED_ABOVE)


def list_declaring_files() -> Iterator[str]:
    """The files of other rooms that looking up a code imports, below the package: for a copy that has nothing else."""
    for name in _DECLARED_ABOVE:
        *packages, module = name.split(".")[1:]
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
