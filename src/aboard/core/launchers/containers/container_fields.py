"""Reads binds, variables and GPUs from the flags of a container runtime."""

import csv
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

from aboard.core.launchers.flag_parser import ParsedFlags
from aboard.core.launchers.launcher_command import LauncherContext
from aboard.core.plan.deepspeed_env_file import parse_env_file
from aboard.core.text.input_text import find_env_name_error
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands

APPTAINERS = frozenset({"apptainer", "singularity"})
RUNTIMES = frozenset({*APPTAINERS, "docker", "podman"})
# Apptainer reads its own variables and those of its former name.
_PREFIXES = ("SINGULARITY", "APPTAINER")
_RUNTIME_VARIABLE = re.compile(r"(?:SINGULARITY|APPTAINER)(?:ENV_.+|_BIND(?:PATH)?)", re.DOTALL)
# They describe the node's own programs, and break those of the image.
_OUTSIDE_VARIABLES = re.compile(r"PATH|HOME|VIRTUAL_ENV|PYTHONHOME|CONDA_\w+|LD_(PRELOAD|LIBRARY_PATH)")
_DEVICE_LIST = re.compile(r"\d{1,4}(,\d{1,4})*")
_READ_ONLY = frozenset({"ro", "readonly"})


def build_container_error(flags: ParsedFlags, where: str, seen: str, variant: str, **values: str) -> InputError:
    """`where` is the flag that is wrong; "" for the whole command."""
    return InputError.of(pasted_commands.CONTAINER, f"{flags.launcher} {where}".rstrip(), seen, variant, **values)


def is_outside_variable(name: str) -> bool:
    """Whether a variable set outside means nothing to the ranks inside, or has been read already."""
    return _OUTSIDE_VARIABLES.fullmatch(name) is not None or _RUNTIME_VARIABLE.fullmatch(name) is not None


def read_apptainer_binds(flags: ParsedFlags, environ: Mapping[str, str]) -> list[str]:
    """SOURCE:TARGET[:ro] of --bind, --mount and the runtime's variables; a flag may list several."""
    texts = [environ.get(f"{prefix}_{name}", "") for prefix in _PREFIXES for name in ("BINDPATH", "BIND")]
    binds = []
    for text in (*filter(None, texts), *flags.list_texts("bind")):
        for bind in text.split(","):
            if not bind.partition(":")[0] or "=" in bind.rpartition(":")[2]:
                seen = f"'{escape_text(text)}' is not a list of binds"
                raise build_container_error(flags, "--bind", seen, "bind", flag="--bind")
            binds.append(bind)
    return [*binds, *(_read_mount(flags, text) for text in flags.list_texts("mount"))]


def read_docker_volumes(flags: ParsedFlags, cwd: str) -> tuple[list[str], list[str]]:
    """The binds of --volume and --mount, and options for volumes that are no directories of the node."""
    binds, options = [], []
    for text in flags.list_texts("volume"):
        source, colon, rest = text.partition(":")
        if colon and source.startswith("."):
            binds.append(f"{posixpath.normpath(posixpath.join(cwd, source))}:{rest}")
        elif colon and source.startswith("/"):
            binds.append(text)
        else:
            options += ["--volume", text]
    for text in flags.list_texts("mount"):
        if "type=bind" in text.split(","):
            binds.append(_read_mount(flags, text))
        else:
            options += ["--mount", text]
    return binds, options


def _read_mount(flags: ParsedFlags, text: str) -> str:
    """`type=bind,source=/a,target=/b,ro` as a bind."""
    fields: dict[str, str] = {}
    for field in next(csv.reader([text]), []):
        name, _, value = field.partition("=")
        fields[name] = value
    source = fields.get("source") or fields.get("src")
    target = fields.get("target") or fields.get("destination") or fields.get("dst")
    if fields.get("type", "bind") != "bind" or not source or not target or ":" in source + target:
        flag = "--bind" if _is_apptainer(flags) else "--volume"
        seen = f"'{escape_text(text)}' binds no directory or file of the node"
        raise build_container_error(flags, "--mount", seen, "bind", flag=flag)
    is_read_only = any(fields.get(name) in {"", "true", "1"} for name in _READ_ONLY)
    return f"{source}:{target}:ro" if is_read_only else f"{source}:{target}"


def read_apptainer_env(flags: ParsedFlags, context: LauncherContext) -> dict[str, str]:
    """The variables that the runtime's flags, and its own variables, set inside."""
    env = {
        name.removeprefix(f"{prefix}ENV_"): value
        for prefix in _PREFIXES
        for name, value in context.environ.items()
        if name.startswith(f"{prefix}ENV_")
    }
    items = [item for text in flags.list_texts("env") for item in _split_pairs(text)]
    files = [path for text in flags.list_texts("env_file") for path in text.split(",")]
    return env | _read_env_files(files, context) | _read_pairs(flags, items, {})


def read_docker_env(flags: ParsedFlags, context: LauncherContext) -> dict[str, str]:
    """The variables of --env and --env-file; a name without a value takes the one of this shell, if there is one."""
    env = _read_env_files(flags.list_texts("env_file"), context)
    return env | _read_pairs(flags, flags.list_texts("env"), context.environ)


def _split_pairs(text: str) -> list[str]:
    """Splits `A=1,B=2` as Apptainer does: a text with one `=` is one pair, whose value may have commas."""
    return next(csv.reader([text]), []) if text.count("=") > 1 else [text]


def _read_env_files(paths: Sequence[str], context: LauncherContext) -> dict[str, str]:
    files = [parse_env_file(context.files.read(path), where=path) for path in paths]
    return {name: value for env in files for name, value in env.items()}


def _read_pairs(flags: ParsedFlags, items: Sequence[str], inherited: Mapping[str, str]) -> dict[str, str]:
    env = {}
    for item in items:
        name, equals, value = item.partition("=")
        is_bare = not equals and _is_apptainer(flags)
        trouble = find_env_name_error(name) or ("it has no value" if is_bare else None)
        if trouble:
            raise build_container_error(flags, "--env", trouble, "env", flag="--env")
        if equals or name in inherited:
            env[name] = value if equals else inherited[name]
    return env


def read_docker_gpus(flags: ParsedFlags) -> tuple[str, tuple[int, ...] | None, list[str]]:
    """The kind of GPUs, the slots to use (None: all), and the options for other devices."""
    kind, picked, options = "auto", None, []
    for device in flags.list_texts("device"):
        if device.startswith("nvidia.com/gpu="):
            kind, picked = "nvidia", _read_devices(flags, "--device", device.partition("=")[2])
        elif device in {"/dev/kfd", "/dev/dri"}:
            kind = "rocm"
        else:
            options += ["--device", device]
    for text in flags.list_texts("gpus"):
        chosen = text.strip("\"'")
        kind = "none" if chosen == "0" else "nvidia"
        picked = (
            None
            if chosen == "0"
            else tuple(range(int(chosen)))
            if chosen.isdecimal()
            else _read_devices(flags, "--gpus", chosen)
        )
    return kind, picked, options


def _read_devices(flags: ParsedFlags, flag: str, text: str) -> tuple[int, ...] | None:
    numbers = text.removeprefix("device=").strip("\"'")
    if numbers in {"all", ""}:
        return None
    if not _DEVICE_LIST.fullmatch(numbers):
        seen = f"'{escape_text(text)}' is not a list of GPU numbers"
        raise build_container_error(flags, flag, seen, "gpus")
    return tuple(map(int, numbers.split(",")))


def _is_apptainer(flags: ParsedFlags) -> bool:
    return flags.launcher.partition(" ")[0] in APPTAINERS


def list_passed_options(flags: ParsedFlags, passed: Mapping[str, str]) -> Iterator[str]:
    """The words for the runtime of flags that are given to it as they are; `passed` maps `Flag.dest` to the name."""
    for dest, value in flags.given:
        if dest in passed:
            yield passed[dest]
            if value is not True:
                yield str(value)
