"""Parses `deepspeed …` as DeepSpeed 0.19's launcher/runner.py does."""

from collections.abc import Sequence
from typing import Any

from aboard.core.launchers.deepspeed_exports import collect_exported_env, read_env_files
from aboard.core.launchers.flag_parser import FlagGrammar, ParsedFlags, build_program, parse_flags
from aboard.core.launchers.flag_table import (
    FlagValueKind,
    LauncherFlag,
    list_flags,
    obey_flag,
    obey_switch,
    refuse_flag,
    refuse_help,
    skip_flag,
)
from aboard.core.launchers.launcher_command import LauncherCommand, LauncherContext
from aboard.core.launchers.master_address import parse_master
from aboard.core.plan.launch_request import LaunchRequest
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.usage import pasted_commands

NAME = "deepspeed"
DEFAULT_HOSTFILE = "/job/hostfile"
OTHER_LAUNCHER = "Aboard starts the ranks itself, and can't use a different launcher"

_NOTHING = FlagValueKind.NOTHING
_NODE_RANK = "is not needed: Aboard assigns it to each node"
_OWN_MESSAGES = "is not needed: Aboard prints its own messages"
_ELASTIC = "elastic runs are not supported: Aboard refuses a smaller world size than requested"

GRAMMAR = FlagGrammar(
    launcher=NAME,
    flags=(
        refuse_help(NAME),
        *list_flags(obey_flag, "--hostfile|-H --include|-i --exclude|-e --master_addr --venv_script"),
        *list_flags(obey_flag, "--num_nodes --num_gpus|--num_accelerators --ssh_port", takes=FlagValueKind.NUMBER),
        obey_flag("--master_port", takes=FlagValueKind.NUMBER),
        *list_flags(obey_switch, "--module --no_python --no_local_rank --bind_cores_to_rank --no_ssh"),
        skip_flag("--node_rank", note=_NODE_RANK),
        skip_flag("--no_ssh_check", takes=_NOTHING, note="is not needed: the quick check probes every node"),
        skip_flag("--force_multi", takes=_NOTHING, note="is not needed: one remote node is handled like many"),
        skip_flag("--save_pid", takes=_NOTHING, note="is not needed: aboard status and aboard stop know the run"),
        skip_flag("--log_level", note=_OWN_MESSAGES),
        skip_flag("--quiet", "-q", takes=_NOTHING, note=_OWN_MESSAGES),
        skip_flag(
            "--enable_each_rank_log",
            note="is not needed: each rank has its own log in the run directory (aboard logs --rank N)",
            accepted=("None",),
        ),
        refuse_flag("--launcher", note=OTHER_LAUNCHER, fix=pasted_commands.FLAG.fix("slurm"), accepted=("pdsh",)),
        refuse_flag(
            "--launcher_args",
            note="these are options of pdsh or MPI, which Aboard doesn't use",
            fix=pasted_commands.FLAG.fix("ssh-config"),
            accepted=("",),
        ),
        refuse_flag(
            "--autotuning",
            note="the autotuner starts its own runs with DeepSpeed's launcher",
            fix=pasted_commands.FLAG.fix("autotuning"),
        ),
        refuse_flag(
            "--bind_core_list",
            note="the cores of a rank are chosen on each node, near its accelerator",
            fix=pasted_commands.FLAG.fix("cores"),
        ),
    ),
)


def _refuse_elastic(name: str, **settings: Any) -> LauncherFlag:
    return refuse_flag(name, note=_ELASTIC, fix=pasted_commands.FLAG.fix("elastic", flag=name), **settings)


# Flags of DeepSpeed before 0.19, which guides still show.
FORMER_FLAGS = (
    _refuse_elastic("--elastic_training", takes=_NOTHING),
    *list_flags(_refuse_elastic, "--min_elastic_nodes --max_elastic_nodes", accepted=("-1",)),
    refuse_flag("--comment", note="this is for Slurm's srun", accepted=("",)),
)
_ALL_FLAGS = FlagGrammar(launcher=NAME, flags=(*GRAMMAR.flags, *FORMER_FLAGS))


def parse_deepspeed(words: Sequence[str], context: LauncherContext) -> LauncherCommand:
    """Parses `deepspeed WORDS`. A named hostfile must exist, although DeepSpeed would continue without it."""
    flags = parse_flags(_ALL_FLAGS, words)
    _refuse_combinations(flags)
    hostfile, notes = _find_hostfile(flags, context)
    env: dict[str, str] = {}
    if hostfile is not None and not flags.on("no_ssh"):  # DeepSpeed sends variables to other nodes only
        env = collect_exported_env(context.environ, cwd=context.cwd)
        more, env_files = read_env_files(context)
        env |= more
        notes += tuple(f"Environment variables read from {path}." for path in env_files)
    if flags.on("no_ssh"):
        notes += ("--no_ssh is not needed: one command starts all nodes.",)
    master_address = parse_master(flags.text("master_addr"), flags.values.get("master_port"), where="--master_addr")
    gpus = flags.count("num_gpus")
    return LauncherCommand(
        launcher=NAME,
        request=LaunchRequest(
            program=build_program(flags, local_rank="" if flags.on("no_local_rank") else "--local_rank"),
            ranks=gpus,
            nodes=flags.count("num_nodes"),
            master_address=master_address.address,
            master_port=master_address.port,
            env=env,
            bind=flags.on("bind_cores_to_rank"),
        ),
        hostfile=hostfile,
        include=flags.text("include") or "",
        exclude=flags.text("exclude") or "",
        picked=tuple(range(gpus)) if gpus else None,
        setup=(f"source {venv}",) if (venv := flags.text("venv_script")) else (),
        ssh_port=flags.count("ssh_port"),
        per_node=flags.on("no_ssh"),
        notes=(*flags.notes, *notes),
    )


def _refuse_combinations(flags: ParsedFlags) -> None:
    counted = [name for name in ("num_nodes", "num_gpus") if flags.count(name)]
    filtered = [name for name in ("include", "exclude") if flags.text(name)]
    if counted and filtered:
        seen = f"--{counted[0]} can't be used with --{filtered[0]}, and DeepSpeed refuses it too"
        fix = pasted_commands.FLAG.fix("filtered", counted=counted[0], filter=filtered[0])
        raise InputError(pasted_commands.FLAG, [Problem(where=f"{NAME} --{counted[0]}", seen=seen, fix=fix)])


def _find_hostfile(flags: ParsedFlags, context: LauncherContext) -> tuple[str | None, tuple[str, ...]]:
    if named := flags.text("hostfile"):
        return named, ()
    if context.files.exists(DEFAULT_HOSTFILE):
        return DEFAULT_HOSTFILE, (f"Nodes read from {DEFAULT_HOSTFILE}, as deepspeed does.",)
    return None, ()
