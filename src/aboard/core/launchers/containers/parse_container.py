"""Parses `singularity exec …`, `apptainer run …`, `docker run …` and `podman run …` with what they start inside."""

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aboard.core.cluster.container import Container, map_to_outside
from aboard.core.launchers.containers import apptainer_flags, docker_flags
from aboard.core.launchers.containers.container_fields import (
    APPTAINERS,
    build_container_error,
    is_outside_variable,
    list_passed_options,
    read_apptainer_binds,
    read_apptainer_env,
    read_docker_env,
    read_docker_gpus,
    read_docker_volumes,
)
from aboard.core.launchers.flag_parser import FlagGrammar, ParsedFlags, parse_flags
from aboard.core.launchers.flag_table import LauncherFlag
from aboard.core.launchers.launcher_command import LauncherCommand, LauncherContext, LauncherFiles
from aboard.core.launchers.slurm.srun import SLURM_COMMANDS
from aboard.core.launchers.wrapped_commands import find_command_text
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.program import PYTHON_WORDS, build_rank_program
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass

# Aboard sets them for each rank.
_RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PWD", "OLDPWD"}
)
# `bash -c TEXT`; words behind the text are arguments of the shell.
_SHELL_WORDS = 3
_SHELL_CHARACTERS = re.compile(r"[;&|<>(){}$`*?~\n\\]")
_SHARED = "The ranks of a node share memory, so their containers keep the node's /dev, PID and IPC namespaces."


@dataclass(frozen=True, kw_only=True)
class _PastedContainer:
    """The container, the words that run inside, the slots that its flags pick, and notes."""

    container: Container
    words: tuple[str, ...]
    picked: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _ContainerFiles:
    """Reads the paths that a launcher inside sees from where their binds come from; `cwd` is the directory outside."""

    files: LauncherFiles
    container: Container
    cwd: str

    def exists(self, path: str) -> bool:
        return self.files.exists(self.find(path))

    def read(self, path: str) -> str:
        return self.files.read(self._find_existing(path))

    def settings(self, path: str) -> Mapping[str, object]:
        return self.files.settings(self._find_existing(path))

    def find(self, path: str) -> str:
        """The path outside, relative to the command's directory if that is how a script wrote the file."""
        outside = map_to_outside(self.container, path)
        relative = outside.removeprefix(f"{self.cwd}/")
        return relative if relative != outside and self.files.exists(relative) else outside

    def _find_existing(self, path: str) -> str:
        outside = self.find(path)
        if self.files.exists(outside):
            return outside
        image, name = self.container.image, path.rpartition("/")[2]
        way = "copy" if self.container.runtime in APPTAINERS else "copy-docker"
        fix = pasted_commands.CONTAINER.fix(way, runtime=self.container.runtime, image=image, path=path, name=name)
        seen = f"there is no {escape_text(outside)} on this machine, and Aboard doesn't read files of the image"
        raise InputError(pasted_commands.CONTAINER, [Problem(where=escape_text(path), seen=seen, fix=fix)])


def parse_container(words: Sequence[str], context: LauncherContext) -> LauncherCommand:
    """Parses a runtime's whole command: the container of each rank, and what the launcher inside asks for.

    A program inside that is no launcher is a rank; the command's `launcher` is then the runtime.
    """
    runtime = words[0].rpartition("/")[2]
    read = _read_apptainer if runtime in APPTAINERS else _read_docker
    pasted = read(runtime, words[1:], context)
    container = pasted.container
    inside = replace(
        context,
        files=_ContainerFiles(files=context.files, container=container, cwd=context.cwd),
        environ=_list_inside_variables(container, context),
        cwd=container.workdir or context.cwd,
    )
    folder, words = _split_change_of_directory(pasted.words)
    if folder:
        container = replace(container, workdir=posixpath.normpath(posixpath.join(container.workdir or "/", folder)))
        inside = replace(
            inside,
            files=_ContainerFiles(files=context.files, container=container, cwd=context.cwd),
            cwd=container.workdir or context.cwd,
        )
    try:
        inner = context.parse_inner(words, inside)
    except InputError as error:
        raise _correct_fix(error) from None
    if inner is None:
        request = LaunchRequest(program=build_rank_program(words))
        inner = LauncherCommand(launcher=runtime, request=request)
    _refuse_inner_settings(inner, runtime)
    # The values for inside are the container's own; variables of the shell outside come later, and don't replace them.
    env = {name: value for name, value in {**container.env, **inner.env}.items() if name not in _RANK_VARIABLES}
    container = replace(container, env=env, python=_choose_python(words[0]))
    files = _ContainerFiles(files=context.files, container=container, cwd=context.cwd)
    return replace(
        inner,
        request=replace(inner.request, env={}),
        hostfile=files.find(inner.hostfile) if inner.hostfile else None,
        picked=pasted.picked if inner.picked is None else inner.picked,
        container=container,
        notes=(*pasted.notes, *inner.notes),
    )


def _split_change_of_directory(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The directory and the command of `bash -c 'cd DIRECTORY && COMMAND'`; any other command has none."""
    text = find_command_text(words) or ""
    first, _, rest = text.partition("&&")
    if len(words) > _SHELL_WORDS or not rest or _SHELL_CHARACTERS.search(rest):
        return "", words
    try:
        change, command = shlex.split(first), shlex.split(rest)
    except ValueError:
        return "", words
    is_change = len(change) == len(("cd", "directory")) and change[0] == "cd" and not _SHELL_CHARACTERS.search(first)
    return (change[1], command) if is_change and command else ("", words)


def drop_outside_variables(command: LauncherCommand) -> LauncherCommand:
    """Leaves out variables of the shell that started the container, if it sets them itself or can't use them.

    The node's own shell still needs a PATH that the script set, to find the runtime.
    """
    if command.container is None:
        return command
    inside = command.container.env
    env = {name: value for name, value in command.env.items() if name not in inside and not is_outside_variable(name)}
    path = command.env.get("PATH")
    setup = (f"export PATH={shlex.quote(path)}",) if path else ()
    return replace(command, request=replace(command.request, env=env), setup=(*command.setup, *setup))


def _read_apptainer(runtime: str, words: Sequence[str], context: LauncherContext) -> _PastedContainer:
    start = parse_flags(replace(apptainer_flags.GLOBAL_GRAMMAR, launcher=runtime), words)
    if start.target not in {"exec", "run"}:
        raise _build_subcommand_error(runtime, start.target, "exec")
    flags = _parse_run_flags(apptainer_flags.GRAMMAR, f"{runtime} {start.target}", start.args)
    if flags.target.startswith("instance://"):
        seen = f"{escape_text(flags.target)} is a container that runs already, on one node"
        raise build_container_error(flags, "", seen, "run", runtime=runtime, subcommand="exec")
    for overlay in flags.list_texts("overlay"):
        if not overlay.endswith(":ro"):
            seen = "the ranks of a node can't all write to one overlay"
            raise build_container_error(flags, "--overlay", seen, "overlay", overlay=overlay)
    is_compat = flags.on("compat")
    is_contained = flags.on("containall") or is_compat
    options = list(list_passed_options(flags, _map_names(apptainer_flags.PASSED_FLAGS)))
    options += ["--contain", "--cleanenv"] if is_contained else []
    options += ["--no-init", "--no-umask", "--no-eval"] if is_compat else []
    options += ["--rocm"] if flags.on("nv") and flags.on("rocm") else []
    binds = read_apptainer_binds(flags, context.environ)
    if "--contain" in options:
        binds.append("/dev")  # a contained /dev/shm is each rank's own, and can't be bound by itself
    container = Container(
        runtime=runtime,
        image=flags.target,
        binds=tuple(binds),
        env=read_apptainer_env(flags, context),
        options=tuple(options),
        writable_tmpfs=flags.on("writable_tmpfs") or is_compat,
        gpus="nvidia" if flags.on("nv") else "rocm" if flags.on("rocm") else "auto",
        workdir=flags.text("pwd"),
        entry=start.target,
    )
    notes = (*flags.notes, *((_SHARED,) if "--contain" in options else ()))
    return _PastedContainer(container=container, words=flags.args, notes=notes)


def _read_docker(runtime: str, words: Sequence[str], context: LauncherContext) -> _PastedContainer:
    rest = words[1:] if words[:1] == ["container"] else words
    if rest[:1] != ["run"]:
        raise _build_subcommand_error(runtime, "".join(rest[:1]), "run")
    grammar = docker_flags.PODMAN_GRAMMAR if runtime == "podman" else docker_flags.GRAMMAR
    flags = _parse_run_flags(grammar, f"{runtime} run", rest[1:], has_entry="entrypoint")
    binds, volumes = read_docker_volumes(flags, context.cwd)
    gpus, picked, devices = read_docker_gpus(flags)
    more = docker_flags.PODMAN_PASSED_FLAGS if runtime == "podman" else docker_flags.DOCKER_PASSED_FLAGS
    passed = (*docker_flags.PASSED_FLAGS, *more)
    entry = flags.values.get("entrypoint")
    container = Container(
        runtime=runtime,
        image=flags.target,
        binds=tuple(binds),
        env=read_docker_env(flags, context),
        options=(*list_passed_options(flags, _map_names(passed)), *devices, *volumes),
        gpus=gpus,
        workdir=flags.text("workdir") or "",
        entry="run" if entry is None else "exec",
    )
    inside = (str(entry), *flags.args) if entry else flags.args
    return _PastedContainer(container=container, words=inside, picked=picked, notes=flags.notes)


def _parse_run_flags(grammar: FlagGrammar, launcher: str, words: Sequence[str], has_entry: str = "") -> ParsedFlags:
    """The flags, the image and the command behind it."""
    runtime, _, subcommand = launcher.partition(" ")
    try:
        flags = parse_flags(replace(grammar, launcher=launcher), words)
    except InputError as error:
        if error.code != pasted_commands.SCRIPT.code:
            raise
        fix = pasted_commands.CONTAINER.fix("run", runtime=runtime, subcommand=subcommand)
        problem = Problem(where=launcher, seen="the command has no image", fix=fix)
        raise InputError(pasted_commands.CONTAINER, [problem]) from None
    if not flags.args and not (has_entry and flags.text(has_entry)):
        seen = "only the image knows what would run inside"
        values = {"runtime": runtime, "subcommand": subcommand, "image": flags.target}
        raise build_container_error(flags, "", seen, "command", **values)
    return flags


def _list_inside_variables(container: Container, context: LauncherContext) -> dict[str, str]:
    """What a launcher inside sees: Apptainer passes on the variables of its shell, the others don't."""
    passes = container.runtime in APPTAINERS and "--cleanenv" not in container.options
    return {**(context.environ if passes else {}), **container.env}


def _choose_python(first: str) -> str:
    """The interpreter that the command names, as in `python -m torch.distributed.run`; it runs the ranks too."""
    is_python = first in PYTHON_WORDS or (first.startswith("/") and first.rpartition("/")[2] in PYTHON_WORDS)
    return first if is_python else "python3"


def _correct_fix(error: InputError) -> InputError:
    """For a command that wraps a launcher, the fix would be a command outside of the container."""
    if error.code != pasted_commands.WRAPPED.code:
        return error
    fix = pasted_commands.CONTAINER.fix("inside")
    problems = [Problem(where=problem.where, seen=problem.seen, fix=fix) for problem in error.problems]
    return InputError(pasted_commands.CONTAINER, problems)


def _refuse_inner_settings(inner: LauncherCommand, runtime: str) -> None:
    """Refuses what can't come from inside a container: another container, a job, and lines to run before a rank."""
    if inner.setup:
        seen = "it is inside the container, where Aboard runs nothing before a rank"
        raise InputError.of(pasted_commands.CONTAINER, f"{inner.launcher} --venv_script", seen, "venv")
    if inner.launcher in SLURM_COMMANDS:
        seen = f"it starts {inner.launcher} inside"
        raise InputError.of(pasted_commands.CONTAINER, runtime, seen, "order", inner=inner.launcher)
    if inner.container is not None:
        raise InputError.of(pasted_commands.CONTAINER, runtime, f"it starts {inner.container.runtime} inside", "one")


def _build_subcommand_error(runtime: str, subcommand: str, usual: str) -> InputError:
    seen = f"{runtime} {escape_text(subcommand)}".rstrip() + " starts no container for ranks"
    return InputError.of(pasted_commands.CONTAINER, runtime, seen, "run", runtime=runtime, subcommand=usual)


def _map_names(flags: Sequence[LauncherFlag]) -> Mapping[str, str]:
    return {flag.dest: flag.names[0] for flag in flags}
