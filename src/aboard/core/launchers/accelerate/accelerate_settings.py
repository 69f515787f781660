"""The settings of `accelerate launch`: its flags, then its config file, then its defaults.

The rules are those of `_validate_launch_command` in accelerate 1.15: a flag wins over the file; the file's
`distributed_type` counts only if no flag selects one; the file's plain keys count only if their flag has no default,
so `same_network` and `rdzv_backend` there have no effect.
"""

from collections.abc import Iterator, Mapping
from enum import Enum

from aboard.core.launchers.accelerate.accelerate_flags import FSDP_ONLY_IN_FILE, GRAMMAR, NAME, SECTIONS
from aboard.core.launchers.flag_parser import ParsedFlags
from aboard.core.launchers.flag_table import Value
from aboard.core.text.input_text import suggest_fix
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass

_PRECISIONS = ("no", "fp16", "bf16", "fp8")
_BOOLEANS = frozenset(flag.dest for flag in GRAMMAR.flags if isinstance(flag.default, bool))


class AccelerateMode(Enum):
    """How accelerate trains; it decides which variables are set."""

    DEEPSPEED = "DeepSpeed"
    FSDP = "FSDP"
    MEGATRON = "Megatron-LM"
    SEVERAL = "several accelerators"
    PLAIN = "one process, or CPUs"


@dataclass(frozen=True, kw_only=True)
class AccelerateSettings:
    """Values by flag name, and the settings that only the file has."""

    mode: AccelerateMode
    values: Mapping[str, object]
    from_file: tuple[str, ...] = ()
    parallelism: bool = False
    unknown: tuple[str, ...] = ()

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        return None if value in {None, ""} else str(value)

    def count(self, name: str) -> int | None:
        value = self.values.get(name)
        return value if isinstance(value, int) and value > 0 else None

    def on(self, name: str) -> bool:
        return _is_true(self.values.get(name))


def merge_settings(flags: ParsedFlags, file: Mapping[str, object] | None, *, where: str) -> AccelerateSettings:
    """Merges the flags with the file called `where`; refuses settings that contradict each other."""
    _refuse_two_modes(flags)
    values: dict[str, object] = {flag.dest: flag.default for flag in GRAMMAR.flags}
    values |= {name: _convert_boolean(name, value) for name, value in flags.values.items()}
    unknown: list[str] = []
    if file is not None:
        _refuse_other_platforms(file, where)
        for key, value in _read_sections(file):
            if key not in values and key != FSDP_ONLY_IN_FILE:
                unknown.append(key)
            if key not in flags.values:
                values[key] = value
        for key, value in file.items():
            if key not in SECTIONS and key != "mixed_precision" and values.get(key) is None:
                values[key] = value
        values["debug"] = values["debug"] or _is_true(file.get("debug"))
    values["mixed_precision"] = flags.text("mixed_precision") or _read_precision(file or {})
    if values["mixed_precision"] not in _PRECISIONS:
        seen = f"mixed_precision can't be '{escape_text(str(values['mixed_precision']))}'"
        fix = suggest_fix(pasted_commands.CONFIG, str(values["mixed_precision"]), _PRECISIONS)
        place = NAME if flags.text("mixed_precision") else where
        raise InputError(pasted_commands.CONFIG, [Problem(where=place, seen=seen, fix=fix)])
    values["dynamo_backend"] = values["dynamo_backend"] or "no"
    section = file.get("deepspeed_config") if file else None
    fields = tuple(section) if isinstance(section, Mapping) else ()
    if file is not None and not flags.text("mixed_precision") and (file.get("mixed_precision") or file.get("fp16")):
        fields = (*fields, "mixed_precision")
    return AccelerateSettings(
        mode=_choose_mode(flags, file),
        values=values,
        from_file=fields,
        parallelism=flags.on("use_parallelism_config") or _has_parallelism(flags, file),
        unknown=tuple(unknown),
    )


def _convert_boolean(name: str, value: Value) -> Value:
    """`--megatron_lm_no_load_optim false` means false here; accelerate treats any text as true."""
    return _is_true(value) if name in _BOOLEANS else value


def _refuse_two_modes(flags: ParsedFlags) -> None:
    modes = [name for name in ("cpu", "multi_gpu", "use_deepspeed", "use_fsdp") if flags.on(name)]
    if len(modes) > 1:
        seen = f"--{modes[0]} and --{modes[1]} can't be used together"
        fix = pasted_commands.FLAG.fix("leave-either", one=modes[0], two=modes[1])
        raise InputError(pasted_commands.FLAG, [Problem(where=f"{NAME} --{modes[0]}", seen=seen, fix=fix)])


def _refuse_other_platforms(file: Mapping[str, object], where: str) -> None:
    machine = str(file.get("compute_environment", "LOCAL_MACHINE"))
    kind = str(file.get("distributed_type", "")).upper()
    for seen, refuse in (
        (f"compute_environment: {escape_text(machine)} is not supported by Aboard", machine != "LOCAL_MACHINE"),
        (f"distributed_type: {escape_text(kind)} is for TPUs, which Aboard does not support", kind in {"XLA", "TPU"}),
    ):
        if refuse:
            raise InputError.of(pasted_commands.CONFIG, where, seen, "elsewhere")


def _read_sections(file: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for section, prefix in SECTIONS.items():
        content = file.get(section)
        for key, value in content.items() if isinstance(content, Mapping) else ():
            # Accelerate tests for `fsdp`, not `fsdp_`, before it adds the prefix.
            yield (key if key.startswith(prefix.rstrip("_")) else prefix + key), value
    backend = file.get("dynamo_backend")  # older config files have it outside the section
    if backend is not None and backend != "NO":
        yield "dynamo_backend", backend


def _read_precision(file: Mapping[str, object]) -> str:
    precision = file.get("mixed_precision")
    return str(precision) if precision else "fp16" if _is_true(file.get("fp16")) else "no"


def _choose_mode(flags: ParsedFlags, file: Mapping[str, object] | None) -> AccelerateMode:
    kind = "" if file is None or _has_mode_flag(flags) else str(file.get("distributed_type", "")).upper()
    if flags.on("cpu"):
        return AccelerateMode.PLAIN
    if flags.on("use_deepspeed") or kind == "DEEPSPEED":
        return AccelerateMode.DEEPSPEED
    if flags.on("use_fsdp") or kind == "FSDP":
        return AccelerateMode.FSDP
    if flags.on("use_megatron_lm") or kind == "MEGATRON_LM":
        return AccelerateMode.MEGATRON
    if flags.on("multi_gpu") or (kind.startswith("MULTI_") and kind != "MULTI_CPU"):
        return AccelerateMode.SEVERAL
    return AccelerateMode.PLAIN


def _has_parallelism(flags: ParsedFlags, file: Mapping[str, object] | None) -> bool:
    return file is not None and not _has_mode_flag(flags) and bool(file.get("parallelism_config"))


def _has_mode_flag(flags: ParsedFlags) -> bool:
    return any(flags.on(name) for name in ("multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm"))


def _is_true(value: object) -> bool:
    return value.lower() in {"true", "yes", "y", "t", "on", "1"} if isinstance(value, str) else bool(value)
