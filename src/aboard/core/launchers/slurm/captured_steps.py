"""What becomes of an srun that a script in a Slurm job has called: a run, scripts on its nodes, or srun itself."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from aboard.core.launchers.captured_launch import Capture, read_captured_launch
from aboard.core.launchers.captured_nodes import compare_captures
from aboard.core.launchers.containers.container_fields import RUNTIMES
from aboard.core.launchers.launcher_command import JobScript, LauncherCommand, LauncherFiles
from aboard.core.launchers.parse_command import is_launcher, parse_launcher_command, split_assignments
from aboard.core.launchers.slurm.srun import NAME, Step, find_task_script, parse_step
from aboard.core.launchers.wrapped_commands import SHELLS, find_script, read_script
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass

_NODE = re.compile(r"(?:-w|--nodelist)=?(.*)")
_COUNT = re.compile(r"(?:-[Nn]=?|--(?:nodes|ntasks|ntasks-per-node)(?:=|$))(.*)")
_PYTHON = re.compile(r"python[0-9.]*")
_RANK = re.compile(r"\bpython[0-9.]*\b|\.py\b|\b(?:" + "|".join(sorted(RUNTIMES)) + r")\b")


@dataclass(frozen=True, kw_only=True)
class JobReader:
    """Reads what a script in a job calls, with the files of the batch host and the job's variables.

    `nodes` are the job's, beginning with the one that runs its script. `is_system_program` tells whether a word is a
    program of the operating system in a search path, such as hostname. With `has_own_python`, the user has chosen the
    ranks' Python, which then need not be the script's.
    """

    script: JobScript
    files: Callable[[str], LauncherFiles]
    environ: Mapping[str, str]
    launch: tuple[str, ...]
    nodes: tuple[str, ...]
    is_system_program: Callable[[str, str], bool]
    has_own_python: bool

    def read(self, capture: Capture) -> LauncherCommand:
        """The command of a launcher or an srun; without srun, a script of sbatch starts ranks on its own node only."""
        command = self.read_task(capture)
        if not self.script.is_batch or command.launcher == NAME or command.hostfile is not None:
            return command
        if (command.nodes or 1) > 1:
            seen = f"{command.launcher} without srun runs on the first node only, and would wait for the others"
            raise InputError.of(pasted_commands.BATCH, _describe_place(capture), seen, "srun")
        one = replace(command.request, nodes=1)
        return replace(command, request=one, per_node=False, include=self.nodes[0])

    def read_task(self, capture: Capture) -> LauncherCommand:
        """The same for a launcher that a task of an srun has called."""
        files, environ = self.files(capture.cwd), self.list_variables(capture)
        command = read_captured_launch(capture, self.launch, files, environ=environ)
        return replace(command, python="") if self.has_own_python else command

    def runs_itself(self, capture: Capture) -> bool:
        """Whether a captured srun is none for Aboard: one task beside others, or a program that is no rank."""
        try:
            step = self._parse_step(capture)
        except InputError:
            return False  # it is refused with its reason
        command = split_assignments(step.command)[1]
        if not command or self._find_task_launcher(capture, step) or self._starts_launcher(command):
            return False
        environ = self.list_variables(capture)
        job_tasks = {environ.get("SLURM_NTASKS", "1"), environ.get("SLURM_NNODES", "1")}
        if (step.layout.nodes, step.layout.tasks_per_node) == (1, 1) and job_tasks != {"1"}:
            return True
        name = command[0].rpartition("/")[2]
        if name in RUNTIMES or _PYTHON.fullmatch(name) or name.endswith(".py"):
            return False
        if name in SHELLS or find_script(command) is not None:
            commands = {name: value for name, value in environ.items() if " " in value.strip()}
            return not _RANK.search(read_script(command, partial(self._read_file, capture), commands))
        return self.is_system_program(command[0], environ.get("PATH", ""))

    def find_task_step(self, capture: Capture) -> Step | None:
        """The step whose tasks call a launcher by a script of their own, once on each node; None for other commands."""
        if capture.launcher != NAME:
            return None
        step = self._parse_step(capture)
        name, tasks = self._find_task_launcher(capture, step), step.layout.tasks_per_node
        if name and tasks > 1:
            seen = f"it would start {name} {tasks} times on each node, and each starts all ranks"
            raise InputError.of(pasted_commands.FLAG, f"{NAME} --ntasks-per-node", seen, "one-task")
        return step if name else None

    def _parse_step(self, capture: Capture) -> Step:
        return parse_step(capture.argv[1:], self.list_variables(capture))

    def _find_task_launcher(self, capture: Capture, step: Step) -> str:
        """The launcher that each task calls by a script of its own; "" if tasks are launchers or ranks."""
        command = split_assignments(step.command)[1]
        environ = self.list_variables(capture)
        return find_task_script(command, partial(self._read_file, capture), environ) if command else ""

    def count_loop(self, capture: Capture) -> int:
        """How many nodes the launcher of an srun for one node waits for; 0 for any other command."""
        if capture.launcher != NAME:
            return 0
        try:
            step = self._parse_step(capture)
            if (step.layout.nodes, step.layout.tasks_per_node) != (1, 1) or self._find_task_launcher(capture, step):
                return 0
            inner = parse_launcher_command(
                step.command, self.files(capture.cwd), environ=self.list_variables(capture), cwd=capture.cwd
            )
        except InputError:
            return 0  # it is refused with its reason
        return inner.nodes or 0 if inner is not None and (inner.nodes or 0) > 1 else 0

    def merge_loop(self, captures: Sequence[Capture]) -> tuple[Capture, Sequence[str]]:
        """One srun on all nodes, for those of a loop over them, and the nodes that they name.

        Raises if they differ in more than their node.
        """
        nodes: list[str] = []
        merged = [
            _extend_to_all_nodes(capture, len(self._parse_step(capture).command), len(captures), nodes)
            for capture in captures
        ]
        named = (f"--nodelist={','.join(nodes)}",) if len(set(nodes)) == len(captures) else ()
        merged = [replace(each, argv=(NAME, *named, *each.argv[1:])) for each in merged]
        if nodes and not named:
            seen = f"{len(captures)} commands at the same time are for the nodes {', '.join(nodes)}"
            raise InputError.of(pasted_commands.BATCH, NAME, seen, "loop")
        names = nodes if named else [f"srun {number}" for number in range(len(captures))]
        problem: Problem | None = compare_captures(
            {name: self.read(each) for name, each in zip(names, merged, strict=True)}
        )
        if problem is not None:
            raise InputError(pasted_commands.BATCH, [replace(problem, fix=pasted_commands.BATCH.fix("loop"))])
        return merged[0], nodes

    def list_variables(self, capture: Capture) -> dict[str, str]:
        """All that the command would have passed on, as srun does."""
        kept = {name: value for name, value in self.environ.items() if name not in capture.removed}
        return {**kept, **capture.env}

    def _starts_launcher(self, command: Sequence[str]) -> bool:
        if command[0].rpartition("/")[2] not in RUNTIMES:
            return is_launcher(command)
        return any(is_launcher(command[at:]) for at in range(2, len(command)))

    def _read_file(self, capture: Capture, path: str) -> str | None:
        files = self.files(capture.cwd)
        return files.read(path) if files.exists(path) else None


def _extend_to_all_nodes(capture: Capture, commands: int, count: int, nodes: list[str]) -> Capture:
    """The srun over all nodes, without the node that it was for, which is added to `nodes`.

    The last `commands` words are what it starts.
    """
    kept: list[str] = []
    rest = list(capture.argv[1:-commands])
    while rest:
        word = rest.pop(0)
        if match := _NODE.fullmatch(word):
            nodes.append((match[1] or rest.pop(0)).strip())
        elif match := _COUNT.fullmatch(word):
            if not match[1]:
                rest.pop(0)
        else:
            kept.append(word)
    return replace(capture, argv=(NAME, f"--nodes={count}", "--ntasks-per-node=1", *kept, *capture.argv[-commands:]))


def _describe_place(capture: Capture) -> str:
    return f"{escape_text(capture.script)}, line {capture.line}" if capture.line else capture.launcher
