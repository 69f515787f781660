"""A launch as typed: nodes, options, and the command after `--`, which is a program or a pasted launcher command."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from aboard.config.input_files import read_text, suggest_similar_file
from aboard.core.cluster.cluster import THIS_MACHINE, Cluster
from aboard.core.cluster.container import Container, find_script_outside
from aboard.core.cluster.hostfile import parse_hostfile
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.plan.launch_request import LaunchRequest, resolve_request
from aboard.core.plan.program import Program, ProgramKind, parse_python_command
from aboard.core.run.lease import Lease
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration, pasted_commands
from aboard.engine.request.launch_options import LaunchOptions
from aboard.engine.request.node_arguments import NodeArguments
from aboard.engine.request.typed_words import format_typed_command, list_typed_words
from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from aboard.core.launchers.captured_launch import Capture
    from aboard.core.launchers.command_kind import CommandKind
    from aboard.core.launchers.launcher_command import JobScript, LauncherCommand, LauncherFiles
    from aboard.core.launchers.slurm.captured_steps import JobReader
    from aboard.engine.request.launch_spec import LaunchSpec

# Launchers and modules with a hostfile, filters or a job of their own.
_NAMES_NODES = frozenset({"deepspeed", "ds", "accelerate", "accelerate-launch", "srun", "sbatch"})


@dataclass(frozen=True, kw_only=True)
class TypedLaunch:
    """A launch as typed, not parsed yet. A script's launch is kept as such, for the launchers that it will call."""

    where: NodeArguments
    command: tuple[str, ...]
    options: LaunchOptions = field(default_factory=LaunchOptions)

    def read(self) -> "LaunchSpec":
        """The launch, which begins with a script if the command is one."""
        spec = self._apply_options(*self.read_command())
        return replace(spec, script=self) if self.is_captured else spec

    def read_captured(self, command: "LauncherCommand", capture: "Capture") -> "LaunchSpec":
        """The launch that a script's launcher was called for, with the same options."""
        return self._apply_options(*self.apply(command, self._open_files(capture).read))

    def _apply_options(self, request: LaunchRequest, cluster: Cluster, notes: tuple[str, ...]) -> "LaunchSpec":
        options, environ = self.options, self.where.environ
        notes += check_script_exists(request.program, cluster)
        request = replace(
            request,
            ranks=options.ranks or request.ranks,
            env={**request.env, **options.read_environment(environ)},
            threads=options.threads or request.threads,
            bind=request.bind if options.bind is None else options.bind,
            beacon=not options.no_beacon,
            master_address=options.master_address or request.master_address,
            master_port=options.master_port or request.master_port,
        )
        cluster, request = resolve_request(cluster, request, options.cwd, shell=environ)
        asked = replace(cluster.recovery, restarts=request.restarts or cluster.recovery.restarts)
        names = [node.name for node in cluster]
        recovery = options.resolve_recovery(asked, names, restarts=0, min_nodes_refusal="launch")
        again = format_typed_command(self.where.argv)
        notes += self.where.check_job(again, detach=options.detach, recovers=recovery.restarts > 0)
        if not self.has_own_size:
            notes += options.check_job_size(self.where, request.ranks)
        lease = Lease(seconds=options.lease or options.lease_seconds, grace=options.grace)
        return options.build_spec(self.where, cluster, request, notes, lease=lease, recovery=recovery)

    def read_command(self) -> tuple[LaunchRequest, Cluster, tuple[str, ...]]:
        """What to run, on which nodes, and notes for the user; a pasted launcher command may name nodes itself."""
        pasted = self._pasted
        if pasted is None:
            return LaunchRequest(program=self._program()), self.where.cluster(), ()
        return self.apply(pasted)

    @property
    def is_captured(self) -> bool:
        """Whether the command runs as it is until it calls a launcher, which is then replaced."""
        return self._kind is not None and self._kind.value == "captured"

    @cached_property
    def _kind(self) -> "CommandKind | None":
        """What happens to the command; None for a program of the user's own."""
        if self.options.module or self.options.no_python or (self._is_own_program and not self.options.capture):
            return None
        from aboard.core.launchers.command_kind import CommandKind, choose_kind  # noqa: PLC0415 - for those who paste

        in_job = self.where.allocation is not None
        kind = choose_kind(self.command, self.options.capture, in_job=in_job, launch=self.launch_words)
        return None if kind is CommandKind.RANK else kind

    def apply(
        self, pasted: "LauncherCommand", read_file: Callable[[str], str] | None = None
    ) -> tuple[LaunchRequest, Cluster, tuple[str, ...]]:
        """What a launcher's command runs, on which nodes, and notes.

        `read_file` reads files of a captured command: they are on the node that called the launcher. If that is this
        machine only because the user named no nodes, its hostfile names them.
        """
        from aboard.core.launchers.node_selection import apply_hostfile_slots, select_nodes  # noqa: PLC0415 - for those who paste

        if pasted.script is not None and read_file is None:
            seen = f"{pasted.launcher} starts a script, which runs in a Slurm job only"
            raise InputError.of(pasted_commands.BATCH, pasted.launcher, seen, "no-job")
        is_placed = read_file is not None and self.where.cluster().source != THIS_MACHINE
        where = self.where if is_placed else self.where.with_default(hostfile=pasted.hostfile, include="", exclude="")
        where = where.with_default(hostfile=where.hostfile, include=pasted.include, exclude=pasted.exclude)
        cluster = where.cluster()
        without_job = pasted.slurm is not None and self.where.allocation is None
        notes = (f"No job is submitted: {escape_text(cluster.source)} names the nodes.",) if without_job else ()
        nodes = cluster.nodes
        if pasted.hostfile is not None and where.hostfile != pasted.hostfile:
            if read_file is not None:
                text = read_file(pasted.hostfile)
            else:
                text = read_text(pasted.hostfile, fix=configuration.FILE.fix("hostfile"))
            nodes, more = apply_hostfile_slots(nodes, parse_hostfile(text, where=pasted.hostfile), pasted.hostfile)
            notes = (*notes, *more)
        return pasted.request, replace(cluster, nodes=select_nodes(pasted, nodes)), (*notes, *pasted.notes)

    def read_capture(self, capture: "Capture") -> "LauncherCommand":
        """The command of a launcher that a script has called."""
        if self.job_reader is not None:
            return self.job_reader.read(capture)
        from aboard.core.launchers.captured_launch import read_captured_launch  # noqa: PLC0415 - for those who paste

        return read_captured_launch(capture, self.launch_words, self._open_files(capture))

    @cached_property
    def script(self) -> "JobScript":
        """What runs until it calls a launcher."""
        from aboard.core.launchers.launcher_command import JobScript  # noqa: PLC0415 - for those who paste
        from aboard.core.launchers.parse_command import split_assignments  # noqa: PLC0415 - for those who paste

        before, command = split_assignments(self.command)
        if self.where.allocation is None or command[0].rpartition("/")[2] != "sbatch":
            return JobScript(words=self.command)
        submitted = self._parse()
        if submitted is None or submitted.script is None:
            raise ValueError("sbatch without a script")
        return replace(submitted.script, env={**submitted.script.env, **before})

    @cached_property
    def job_reader(self) -> "JobReader | None":
        """Reads what the script calls in a Slurm job; None outside of one."""
        allocation = self.where.allocation
        if allocation is None:
            return None
        from aboard.config.accelerate_config import HeadFiles  # noqa: PLC0415 - for those who paste
        from aboard.core.launchers.slurm.captured_steps import JobReader  # noqa: PLC0415 - for those who paste

        script, nodes = self.script, self.where.cluster().nodes
        environ = {name: value for name, value in self.where.environ.items() if name not in script.removed}
        return JobReader(
            script=script,
            # The launcher itself would have read them there.
            files=lambda cwd: HeadFiles(allow_file=True, cwd=cwd),
            environ={**environ, **script.env},
            launch=self.launch_words,
            nodes=tuple(node.name for node in nodes),
            has_own_python=nodes[0].interpreter is not None,
            is_system_program=_is_system_program,
        )

    @property
    def is_forced(self) -> bool:
        """Whether the user asked for the capture, so that a dry run runs the script up to its launcher."""
        return self.options.capture is True

    @property
    def uses_front_end(self) -> bool:
        """Whether the command is a front end that starts a launcher itself."""
        from aboard.core.launchers.command_kind import uses_front_end  # noqa: PLC0415 - only for scripts

        return uses_front_end(self.command)

    def _open_files(self, capture: "Capture") -> "LauncherFiles":
        """What the launcher would have read: on this machine in a Slurm job, otherwise what came with its capture."""
        if self.job_reader is not None:
            return self.job_reader.files(capture.cwd)
        from aboard.config.accelerate_config import parse_accelerate_config  # noqa: PLC0415 - for those who paste
        from aboard.core.launchers.captured_launch import CapturedFiles  # noqa: PLC0415 - for those who paste

        return CapturedFiles(capture=capture, parse=parse_accelerate_config)

    def find_job(self) -> SlurmSettings | None:
        """The job to submit: that of a pasted srun or sbatch, unless nodes are named, or that of cluster.slurm."""
        described = self.where.job_to_submit
        if self.where.allocation is not None or not _is_slurm_command(self.command):
            return described
        if described is None and self.where.cluster().source != THIS_MACHINE:
            return None
        return self._pasted.slurm if self._pasted is not None else described

    @property
    def has_own_size(self) -> bool:
        """Whether the pasted command itself says how many nodes it needs, as srun and sbatch always do."""
        pasted = self._pasted
        return _is_slurm_command(self.command) or (pasted is not None and pasted.nodes is not None)

    def check_alone(self) -> tuple[str, ...]:
        """Refuses a wrong command before its nodes are known; returns notes for the user."""
        pasted = self._pasted
        if pasted is None:
            return _note_missing_script(self._program())
        replaced = pasted.slurm is not None and self.where.job_to_submit is not None
        notes = ("the pasted command asks for the job; cluster.slurm is not used",) if replaced else ()
        missing = () if pasted.script else _note_missing_script(pasted.request.program, pasted.container)
        return (*notes, *pasted.notes, *missing)

    @cached_property
    def _pasted(self) -> "LauncherCommand | None":
        """The launcher's command that was pasted; None if the words are a program of their own."""
        return None if self._kind is None or self.is_captured else self._parse()

    def _parse(self) -> "LauncherCommand | None":
        # The tables of the launchers' flags, for those who paste.
        from aboard.config.accelerate_config import HeadFiles  # noqa: PLC0415 - the reason is above
        from aboard.core.launchers.parse_command import parse_launcher_command  # noqa: PLC0415 - the reason is above

        files = HeadFiles(allow_file=self.where.allow_file)
        return parse_launcher_command(
            self.command,
            files,
            environ=self.where.environ,
            cwd=self.options.cwd,
            launch=self.launch_words,
        )

    @property
    def launch_words(self) -> tuple[str, ...]:
        """The words that the user typed before `--`, without secrets."""
        words = tuple(list_typed_words(self.where.argv))
        return words[: words.index("--")] if "--" in words else ("aboard", "launch")

    def guess(self) -> tuple[Node, ...]:
        """The nodes to dial first; none if the command itself may name others."""
        names = set() if self._is_own_program else {word.rpartition("/")[2].partition(".")[0] for word in self.command}
        return () if names & _NAMES_NODES else self.where.guess()

    @property
    def _is_own_program(self) -> bool:
        """Whether the words can't be a pasted command; gpt-neox's deepy.py starts deepspeed."""
        first = self.command[0]
        return (
            self.options.module
            or self.options.no_python
            or (first.endswith(".py") and first.rpartition("/")[2] != "deepy.py")
        )

    def _program(self) -> Program:
        first, *args = self.command
        if first == "-m" and args:
            return Program(kind=ProgramKind.MODULE, target=args[0], args=tuple(args[1:]))
        if (python := parse_python_command(self.command)) is not None:
            return python
        kind = ProgramKind.MODULE if self.options.module else ProgramKind.PROGRAM
        if first.endswith(".py") and not self.options.no_python and not self.options.module:
            kind = ProgramKind.SCRIPT
        return Program(kind=kind, target=first, args=tuple(args))


def _is_slurm_command(words: Sequence[str]) -> bool:
    """Whether the words start with srun or sbatch, after assignments of variables."""
    command = next((word for word in words if "=" not in word and word != "env"), "")
    return command.rpartition("/")[2] in {"srun", "sbatch"}


def _is_system_program(name: str, path: str) -> bool:
    """Whether a program belongs to the operating system."""
    found = shutil.which(name, path=path)
    return found is not None and os.path.realpath(found).startswith(("/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/"))


def check_script_exists(program: Program, cluster: Cluster) -> tuple[str, ...]:
    """Refuses a missing script if a file with a similar name exists; if remote nodes may have it, returns a note."""
    container = cluster.nodes[0].container
    if not _is_script_missing(program, container) or not (fix := suggest_similar_file(program.target)):
        return ()
    if all(node.transport is TransportKind.LOCAL and node.workdir is None for node in cluster):
        raise InputError(configuration.FILE, [Problem(where=program.target, seen="there is no such file", fix=fix)])
    return (f"there is no {program.target} on this machine; {fix}",)


def _note_missing_script(program: Program, container: Container | None = None) -> tuple[str, ...]:
    return (f"there is no {program.target} on this machine",) if _is_script_missing(program, container) else ()


def _is_script_missing(program: Program, container: Container | None) -> bool:
    """Whether this machine has no such script, where the container's binds would take it from."""
    if program.kind is not ProgramKind.SCRIPT:
        return False
    if container is None:
        return not Path(program.target).exists()
    path = find_script_outside(container, program.target)
    return path is not None and not Path(path).exists()
