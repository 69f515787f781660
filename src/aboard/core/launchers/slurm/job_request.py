"""The job that the flags of srun or sbatch ask for."""

import re
from dataclasses import replace

from aboard.core.launchers.flag_parser import ParsedFlags
from aboard.core.launchers.flag_table import FlagValueKind, LauncherFlag
from aboard.core.launchers.slurm.job_flags import PASSED_FLAGS
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.diagnoses import Fix, InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass

_COUNT = re.compile(r"(?:[\w.-]+:)?(\d{1,6})", re.ASCII)
_GPU_GRES = re.compile(r"(?:gres/|gres:)?gpu(?::([A-Za-z_][\w.-]*))?(?:[:=](\d{1,6}))?", re.ASCII)
# What a line of a batch script can hold without quotes.
_VALUE = re.compile(r"[!$-&(-\[\]-~]*")
# Not written into the script.
_FREE = frozenset({"export", "chdir", "wrap", "jobid", "nodelist"})
# Whose blanks are written between quotes.
_TEXTS = frozenset({"comment", "job_name"})
_PLACEHOLDER = re.compile(r"<[^<>]*>")


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What the job has: `tasks` in all, `tasks_per_node`, and GPUs of each node; None is Slurm's default."""

    nodes: int | None
    tasks: int | None
    tasks_per_node: int | None
    cpus_per_task: int | None
    gpus_per_node: int | None
    settings: SlurmSettings
    extra: tuple[str, ...]
    nodelist: str | None

    def build_settings(self) -> SlurmSettings:
        """The same request with one task on each node, which is the agent."""
        counted = self.count_nodes() or 1
        tasks = self.tasks_per_node or (-(-self.tasks // counted) if self.tasks else 1)
        cpus = tasks * (self.cpus_per_task or 1)
        extra = (*self.extra, *((f"--cpus-per-task={cpus}",) if cpus > 1 else ()))
        extra = (*extra, *((f"--nodelist={self.nodelist}",) if self.nodelist else ()))
        is_typed = any(option.startswith(("--gres=", "--gpus=", "--gpus-per-node=")) for option in extra)
        return replace(
            self.settings, nodes=counted, gpus_per_node=None if is_typed else self.gpus_per_node, extra=extra
        )

    def count_nodes(self) -> int | None:
        if self.nodes is not None:
            return self.nodes
        if self.tasks is not None and self.tasks_per_node is not None:
            return -(-self.tasks // self.tasks_per_node)
        return None

    def count_tasks(self) -> int | None:
        """The number of tasks in all, if the flags say it."""
        nodes = self.count_nodes()
        if self.tasks is not None or self.tasks_per_node is None or nodes is None:
            return self.tasks
        return nodes * self.tasks_per_node


def read_job_request(flags: ParsedFlags, passed: tuple[LauncherFlag, ...] = ()) -> JobRequest:
    """Reads the flags; refuses a range of nodes, and values that a line of a batch script can't hold."""
    _refuse_unusable_values(flags)
    tasks, per_node = flags.count("ntasks"), flags.count("ntasks_per_node")
    nodes = _read_nodes(flags)
    gpus, extra = _read_gpus(flags, nodes, tasks, per_node)
    return JobRequest(
        nodes=nodes,
        tasks=tasks,
        tasks_per_node=per_node,
        cpus_per_task=flags.count("cpus_per_task"),
        gpus_per_node=gpus,
        settings=SlurmSettings(
            nodes=nodes or 1,
            partition=flags.text("partition"),
            account=flags.text("account"),
            time=flags.text("time"),
            qos=flags.text("qos"),
            constraint=flags.text("constraint"),
            exclude=flags.text("exclude"),
        ),
        extra=(*extra, *_list_passed_options(flags, (*PASSED_FLAGS, *passed))),
        nodelist=flags.text("nodelist"),
    )


def build_flag_error(flags: ParsedFlags, flag: str, seen: str, fix: Fix) -> InputError:
    return InputError(pasted_commands.FLAG, [Problem(where=f"{flags.launcher} {flag}", seen=seen, fix=fix)])


def _refuse_unusable_values(flags: ParsedFlags) -> None:
    for dest, value in flags.values.items():
        flag = "--" + dest.replace("_", "-")
        if isinstance(value, str) and _PLACEHOLDER.search(value):
            fix = pasted_commands.FLAG.fix("placeholder", flag=flag)
            raise build_flag_error(flags, flag, f"{escape_text(value)} is a placeholder", fix)
        blanks = " " if dest in _TEXTS else ""
        if isinstance(value, str) and dest not in _FREE and not _VALUE.fullmatch(value.replace(blanks, "")):
            seen = f"'{escape_text(value)}' can't be written into a batch script"
            raise build_flag_error(flags, flag, seen, pasted_commands.FLAG.fix("leave-out", flag=flag))


def _read_nodes(flags: ParsedFlags) -> int | None:
    text = flags.text("nodes")
    if text is None:
        return None
    least, dash, most = text.partition("-")
    if not least.isdecimal() or (dash and least != most) or int(least) < 1:
        seen = f"{escape_text(text)} is not one number of nodes"
        raise build_flag_error(flags, "--nodes", seen, pasted_commands.FLAG.fix("number", flag="--nodes"))
    return int(least)


def _read_gpus(
    flags: ParsedFlags, nodes: int | None, tasks: int | None, per_node: int | None
) -> tuple[int | None, tuple[str, ...]]:
    """The GPUs of each node, and the options that say more than their number."""
    if (text := flags.text("gpus_per_node")) is not None:
        return _read_count(text), (f"--gpus-per-node={text}",) if ":" in text else ()
    if (text := flags.text("gres")) is not None:
        items = text.split(",")
        matches = [match for item in items if (match := _GPU_GRES.fullmatch(item))]
        is_plain = len(items) == len(matches) == 1 and matches[0][1] is None
        count = sum(int(match[2] or 1) for match in matches) or None
        return count, () if is_plain else (f"--gres={text}",)
    if (text := flags.text("gpus_per_task")) is not None:
        count, on_each = _read_count(text), per_node or (tasks // nodes if tasks and nodes else 1)
        return (count * on_each if count else None), (
            (f"--gpus-per-node={text.rpartition(':')[0]}:{count * on_each}",) if ":" in text and count else ()
        )
    if (text := flags.text("gpus")) is not None:
        count = _read_count(text)
        if count and ":" not in text and count % (nodes or 1) == 0:
            return count // (nodes or 1), ()
        return None, (f"--gpus={text}",)
    return None, ()


def _read_count(text: str) -> int | None:
    match = _COUNT.fullmatch(text)
    return int(match[1]) if match else None


def _list_passed_options(flags: ParsedFlags, passed: tuple[LauncherFlag, ...]) -> tuple[str, ...]:
    options = []
    for flag in passed:
        value = flags.values.get(flag.dest)
        if value is None or value is False:
            continue
        bare = flag.takes is FlagValueKind.NOTHING or (flag.takes is FlagValueKind.OPTIONAL and value == "")
        options.append(flag.names[0] if bare else f"{flag.names[0]}={value}")
    return tuple(options)
