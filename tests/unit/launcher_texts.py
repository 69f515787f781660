"""What the tests of pasted commands share: files that are not on a disk, and a Pasted or a refusal as text."""

import shlex
from collections.abc import Mapping

from aboard.config.accelerate_config import parse_accelerate_config
from aboard.core.cluster.container import Container
from aboard.core.launchers.launcher_command import ABOARD_LAUNCH, LauncherCommand
from aboard.core.launchers.parse_command import parse_launcher_command
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.usage import configuration


class TextFiles:
    """The head's files, by path."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def exists(self, path: str) -> bool:
        return path in self._texts

    def read(self, path: str) -> str:
        if path not in self._texts:
            problem = Problem(where=path, seen="there is no such file", fix=configuration.FILE.fix("left-out"))
            raise InputError(configuration.FILE, [problem])
        return self._texts[path]

    def settings(self, path: str) -> Mapping[str, object]:
        return parse_accelerate_config(self.read(path), file=path)


def pasted(
    command: str,
    *,
    files: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    launch: tuple[str, ...] = ABOARD_LAUNCH,
) -> LauncherCommand:
    """What a launcher's command line, as a shell would split it, asks for."""
    got = parse_launcher_command(
        shlex.split(command),
        TextFiles(files or {}),
        environ=environ or {},
        cwd="/home/me/project",
        launch=launch,
    )
    assert got is not None
    return got


def as_text(command: str, files: Mapping[str, str], environ: Mapping[str, str] | None = None) -> str:
    """The Pasted, or every problem of the refusal, in lines that a person can check."""
    try:
        return "\n".join(_lines(pasted(command, files=files, environ=environ))) + "\n"
    except InputError as error:
        return "".join(f"refused [{error.code}] {problem}\n  fix: {problem.fix}\n" for problem in error.problems)


def _format_job(settings: SlurmSettings) -> str:
    fields = {name: value for name, value in vars(settings).items() if value not in {None, 0, ()}}
    return ", ".join(f"{name} {' '.join(value) if name == 'extra' else value}" for name, value in fields.items())


def _format_container(container: Container) -> str:
    fields = {
        name: value for name, value in vars(container).items() if name != "env" and value not in {None, (), False}
    }
    return ", ".join(
        f"{name} {' '.join(value) if isinstance(value, tuple) else value}" for name, value in fields.items()
    )


def _lines(got: LauncherCommand) -> list[str]:
    request, program = got.request, got.request.program
    rows = {
        "launcher": got.launcher,
        "hostfile": got.hostfile,
        "include": got.include,
        "exclude": got.exclude,
        "nodes": got.nodes,
        "ranks on each node": got.ranks if got.ranks is not None else "one for each slot",
        "slots": None if got.picked is None else ",".join(map(str, got.picked)),
        "master": f"{request.master_address or '(chosen)'}:{request.master_port or '(chosen)'}",
        "threads": request.threads,
        "bound to cores": request.bind or None,
        "ssh port": got.ssh_port,
        "workdir": got.workdir,
        "job": _format_job(got.slurm) if got.slurm else None,
        "setup": "; ".join(got.setup),
        "container": _format_container(got.container) if got.container else None,
        f"{program.kind.value}": program.target + (f" {program.local_rank}=N" if program.local_rank else ""),
    }
    return [
        *(f"{name}: {value}" for name, value in rows.items() if value not in {None, ""}),
        *(f"  {argument}" for argument in program.args),
        *(f"env: {name}={value}" for name, value in sorted(got.env.items())),
        *(f"env inside: {name}={value}" for name, value in sorted(got.container.env.items() if got.container else ())),
        *(f"note: {note}" for note in got.notes),
    ]
