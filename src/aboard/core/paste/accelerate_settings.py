"""What `accelerate launch` goes by: its flags, its config file where they are silent, and its defaults.

The rules are those of `_validate_launch_command` in accelerate 1.15: a flag wins over the file; the file's
`distributed_type` counts only if no flag says how to train; of the file's plain keys only those count whose flag has no
default, so that `same_network` and `rdzv_backend` there change nothing.
"""

from collections.abc import Iterator, Mapping
from enum import Enum

from aboard.core.paste.accelerate_flags import FSDP_ONLY_IN_FILE, GRAMMAR, NAME, SECTIONS
from aboard.core.paste.flags import Value
from aboard.core.paste.typed import Typed
from aboard.core.words import meant, visible
from aboard.diagnoses import InputError, Problem, paste
from aboard.lazy import dataclass

_PRECISIONS = ("no", "fp16", "bf16", "fp8")
_BOOLEANS = frozenset(flag.dest for flag in GRAMMAR.flags if isinstance(flag.default, bool))


class Way(Enum):
    """How accelerate trains, which decides what it sets."""

    DEEPSPEED = "DeepSpeed"
    FSDP = "FSDP"
    MEGATRON = "Megatron-LM"
    SEVERAL = "several accelerators"
    PLAIN = "one process, or CPUs"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Values by their flag's name, and what the file alone can say."""

    way: Way
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
        return _truth(self.values.get(name))


def settle(typed: Typed, file: Mapping[str, object] | None, *, where: str) -> Settings:
    """Merges the flags with the file, `where` being its name; refuses what can't be had at once."""
    _refuse_two_ways(typed)
    values: dict[str, object] = {flag.dest: flag.default for flag in GRAMMAR.flags}
    values |= {name: _meant(name, value) for name, value in typed.values.items()}
    unknown: list[str] = []
    if file is not None:
        _refuse_elsewhere(file, where)
        for key, value in _sectioned(file):
            if key not in values and key != FSDP_ONLY_IN_FILE:
                unknown.append(key)
            if key not in typed.values:
                values[key] = value
        for key, value in file.items():
            if key not in SECTIONS and key != "mixed_precision" and values.get(key) is None:
                values[key] = value
        values["debug"] = values["debug"] or _truth(file.get("debug"))
    values["mixed_precision"] = typed.text("mixed_precision") or _precision(file or {})
    if values["mixed_precision"] not in _PRECISIONS:
        seen = f"mixed_precision can't be '{visible(str(values['mixed_precision']))}'"
        fix = meant(paste.CONFIG, str(values["mixed_precision"]), _PRECISIONS)
        raise InputError(
            paste.CONFIG, [Problem(where=NAME if typed.text("mixed_precision") else where, seen=seen, fix=fix)]
        )
    values["dynamo_backend"] = values["dynamo_backend"] or "no"
    section = file.get("deepspeed_config") if file else None
    fields = tuple(section) if isinstance(section, Mapping) else ()
    if file is not None and not typed.text("mixed_precision") and (file.get("mixed_precision") or file.get("fp16")):
        fields = (*fields, "mixed_precision")
    return Settings(
        way=_way(typed, file),
        values=values,
        from_file=fields,
        parallelism=typed.on("use_parallelism_config") or _parallel(typed, file),
        unknown=tuple(unknown),
    )


def _meant(name: str, value: Value) -> Value:
    """`--megatron_lm_no_load_optim false` means false here; accelerate takes any text for true."""
    return _truth(value) if name in _BOOLEANS else value


def _refuse_two_ways(typed: Typed) -> None:
    ways = [name for name in ("cpu", "multi_gpu", "use_deepspeed", "use_fsdp") if typed.on(name)]
    if len(ways) > 1:
        seen = f"--{ways[0]} and --{ways[1]} can't be used together"
        fix = paste.FLAG.fix("leave-either", one=ways[0], two=ways[1])
        raise InputError(paste.FLAG, [Problem(where=f"{NAME} --{ways[0]}", seen=seen, fix=fix)])


def _refuse_elsewhere(file: Mapping[str, object], where: str) -> None:
    machine = str(file.get("compute_environment", "LOCAL_MACHINE"))
    kind = str(file.get("distributed_type", "")).upper()
    for seen, refuse in (
        (f"compute_environment: {visible(machine)} is not reached by Aboard", machine != "LOCAL_MACHINE"),
        (f"distributed_type: {visible(kind)} is for TPUs, which are not reached by Aboard", kind in {"XLA", "TPU"}),
    ):
        if refuse:
            fix = paste.CONFIG.fix("elsewhere")
            raise InputError(paste.CONFIG, [Problem(where=where, seen=seen, fix=fix)])


def _sectioned(file: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for section, prefix in SECTIONS.items():
        given = file.get(section)
        for key, value in given.items() if isinstance(given, Mapping) else ():
            # accelerate asks for `fsdp`, not for `fsdp_`, before it adds the prefix
            yield (key if key.startswith(prefix.rstrip("_")) else prefix + key), value
    backend = file.get("dynamo_backend")  # as accelerate wrote it before it had a section
    if backend is not None and backend != "NO":
        yield "dynamo_backend", backend


def _precision(file: Mapping[str, object]) -> str:
    given = file.get("mixed_precision")
    return str(given) if given else "fp16" if _truth(file.get("fp16")) else "no"


def _way(typed: Typed, file: Mapping[str, object] | None) -> Way:
    kind = ""
    if file is not None and not any(
        typed.on(name) for name in ("multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm")
    ):
        kind = str(file.get("distributed_type", "")).upper()
    if typed.on("cpu"):
        return Way.PLAIN
    if typed.on("use_deepspeed") or kind == "DEEPSPEED":
        return Way.DEEPSPEED
    if typed.on("use_fsdp") or kind == "FSDP":
        return Way.FSDP
    if typed.on("use_megatron_lm") or kind == "MEGATRON_LM":
        return Way.MEGATRON
    if typed.on("multi_gpu") or (kind.startswith("MULTI_") and kind != "MULTI_CPU"):
        return Way.SEVERAL
    return Way.PLAIN


def _parallel(typed: Typed, file: Mapping[str, object] | None) -> bool:
    named = any(typed.on(name) for name in ("multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm"))
    return file is not None and not named and bool(file.get("parallelism_config"))


def _truth(value: object) -> bool:
    return value.lower() in {"true", "yes", "y", "t", "on", "1"} if isinstance(value, str) else bool(value)
