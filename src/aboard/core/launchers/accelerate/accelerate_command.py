"""Parses `accelerate launch …` and its config file as accelerate 1.15 does."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from aboard.core.cluster.interpreter import NO_ENV
from aboard.core.launchers.accelerate.accelerate_env import build_accelerate_env
from aboard.core.launchers.accelerate.accelerate_flags import GRAMMAR, NAME, NOT_OURS, SUPPORTED_LAUNCHERS
from aboard.core.launchers.accelerate.accelerate_settings import AccelerateMode, AccelerateSettings, merge_settings
from aboard.core.launchers.deepspeed_exports import collect_exported_env, read_env_files
from aboard.core.launchers.flag_parser import ParsedFlags, build_program, parse_flags
from aboard.core.launchers.launcher_command import LauncherCommand, LauncherContext
from aboard.core.launchers.master_address import parse_master
from aboard.core.launchers.torchrun import NO_RENDEZVOUS
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.text.input_text import format_count
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass

_IDS = re.compile(r"\d{1,4}(,\d{1,4})*")


def parse_accelerate(words: Sequence[str], context: LauncherContext) -> LauncherCommand:
    """Parses `accelerate launch WORDS`; accelerate's number of processes is the total of all nodes."""
    flags = parse_flags(GRAMMAR, words)
    path = _find_config_file(flags, context)
    settings = merge_settings(flags, context.files.settings(path) if path else None, where=path or NAME)
    nodes, ranks, notes = _read_counts(settings)
    hosts = _read_hosts(settings, flags, context)
    if hosts.include or hosts.exclude:  # then the filters decide the number of nodes
        ranks = None
    port = settings.values.get("main_process_port")
    master_address = parse_master(settings.text("main_process_ip"), port, where="--main_process_ip")
    env = {**hosts.env, **build_accelerate_env(settings)}
    if path and not flags.text("config_file"):
        notes = (f"Settings read from {path}, as accelerate does.", *notes)
    if flags.text("rdzv_backend"):
        notes = (*notes, f"--rdzv_backend {NO_RENDEZVOUS}.")
    if settings.unknown:
        notes = (*notes, f"{path}: accelerate doesn't know {', '.join(map(escape_text, settings.unknown))} either.")
    return LauncherCommand(
        launcher=NAME,
        request=LaunchRequest(
            program=build_program(flags),
            ranks=ranks,
            nodes=nodes,
            master_address=master_address.address,
            master_port=master_address.port,
            env=env,
            threads=settings.count("num_cpu_threads_per_process"),
            restarts=settings.count("max_restarts") or 0,
        ),
        hostfile=hosts.hostfile,
        include=hosts.include,
        exclude=hosts.exclude,
        picked=_parse_gpu_ids(settings),
        per_node=hosts.per_node,
        notes=(*flags.notes, *notes, *hosts.notes),
    )


def _find_config_file(flags: ParsedFlags, context: LauncherContext) -> str | None:
    """The named file, or the one that `accelerate config` wrote; with --cpu only a named one."""
    if named := flags.text("config_file"):
        return named
    cache = context.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = context.environ.get("HF_HOME", f"{cache}/huggingface")
    path = f"{home}/accelerate/default_config.yaml"
    return path if not flags.on("cpu") and context.files.exists(path) else None


def _read_counts(settings: AccelerateSettings) -> tuple[int | None, int | None, tuple[str, ...]]:
    """The number of nodes, and of ranks on each; refused where accelerate would round down and start fewer ranks."""
    nodes, total = settings.count("num_machines"), settings.count("num_processes")
    if total is None:
        return nodes, None, ("The number of processes is not given, so each node starts one rank per slot.",)
    if nodes is None:
        note = f"The number of machines was not given, so one node starts {format_count(total, 'rank')}."
        return 1, total, (note,)
    if total % nodes:
        seen = f"{total} processes can't be divided evenly among {nodes} machines"
        raise InputError.of(pasted_commands.FLAG, f"{NAME} --num_processes", seen, "processes")
    return nodes, total // nodes, ()


@dataclass(frozen=True, kw_only=True)
class _Hosts:
    """The nodes from DeepSpeed's settings, and the variables that its launcher would send to them.

    Otherwise accelerate is `per_node`.
    """

    hostfile: str | None = None
    include: str = ""
    exclude: str = ""
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENV)
    notes: tuple[str, ...] = ()
    per_node: bool = True


def _read_hosts(settings: AccelerateSettings, flags: ParsedFlags, context: LauncherContext) -> _Hosts:
    """With DeepSpeed on several machines accelerate runs `deepspeed --hostfile …`, so this does the same."""
    if settings.mode is not AccelerateMode.DEEPSPEED:
        return _Hosts()
    launcher = (settings.text("deepspeed_multinode_launcher") or "pdsh").lower()
    ignored: tuple[str, ...] = ()
    if launcher not in SUPPORTED_LAUNCHERS and not flags.text("deepspeed_multinode_launcher"):
        ignored = (f"The config's deepspeed_multinode_launcher, {escape_text(launcher)}, is not used: {NOT_OURS}.",)
        launcher = "pdsh"
    if launcher not in SUPPORTED_LAUNCHERS:
        where = f"{NAME} --deepspeed_multinode_launcher"
        seen = f"{escape_text(launcher)}: {NOT_OURS}"
        raise InputError.of(pasted_commands.FLAG, where, seen, "pdsh")
    if (settings.count("num_machines") or 1) == 1 or launcher != "pdsh":
        before = context.environ.get("PYTHONPATH")
        return _Hosts(env={"PYTHONPATH": f"{before}:{context.cwd}" if before else context.cwd}, notes=ignored)
    # Not `./.deepspeed_env`: accelerate itself appends its whole environment to it at each start.
    more, env_files = read_env_files(context, folders=("~",))
    exclude = settings.text("deepspeed_exclusion_filter") or ""
    return _Hosts(
        hostfile=settings.text("deepspeed_hostfile"),
        include="" if exclude else settings.text("deepspeed_inclusion_filter") or "",
        exclude=exclude,
        env=collect_exported_env(context.environ, cwd=context.cwd) | more,
        notes=(*ignored, *(f"Environment variables read from {file}." for file in env_files)),
        per_node=False,
    )


def _parse_gpu_ids(settings: AccelerateSettings) -> tuple[int, ...] | None:
    text = (settings.text("gpu_ids") or "all").replace(" ", "")
    if text == "all":
        return None
    if not _IDS.fullmatch(text):
        seen = f"'{escape_text(text)}' is not a list of slot numbers"
        raise InputError.of(pasted_commands.FLAG, f"{NAME} --gpu_ids", seen, "gpus")
    return tuple(map(int, text.split(",")))
