"""Refuses two misuses inside Slurm: an allocation whose nodes were not named, and copies started by srun."""

from collections.abc import Mapping, Sequence

from aboard.core.cluster.node_sets import expand_node_set, fold_names
from aboard.core.text.shell_quoting import join_argv
from aboard.diagnoses import AboardError, InputError, format_shell
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import planning

# Step ids from here up are reserved by Slurm, such as for batch scripts and interactive shells (slurm.h).
_FIRST_SPECIAL_STEP = 0xFFFF_FFF0
# Up to this many nodes, a command lists them one by one.
_NAMED = 8


def refuse_srun_copies(env: Mapping[str, str], argv: Sequence[str]) -> None:
    """Refuses to run as one of several copies that `srun` started: each would start the whole run."""
    step = _read_number(env, "SLURM_STEP_ID")
    copies = _read_number(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    # With --pty, only the first task has a terminal, which is interactive.
    if step is None or step >= _FIRST_SPECIAL_STEP or copies is None or copies <= 1 or "SLURM_PTY_PORT" in env:
        return
    seen = f"srun started {copies} copies of aboard; start only one, because it starts the ranks on all nodes itself"
    raise AboardError(planning.SLURM_COPIES, seen, command=join_argv(["aboard", *argv]))


def refuse_allocation(env: Mapping[str, str], argv: Sequence[str]) -> None:
    """Refuses to run on this machine alone inside a Slurm job of several nodes, none of which was named."""
    if "SLURM_JOB_ID" not in env:
        return
    written = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST", "")
    names = _parse_node_list(written)
    count = max(len(names), _read_number(env, "SLURM_JOB_NUM_NODES", "SLURM_NNODES") or 0)
    if count <= 1:
        return
    verb, *rest = argv
    listed = list(names) if len(names) <= _NAMED else [fold_names(names)]
    named = join_argv(["aboard", verb, *listed, *rest])
    everywhere = format_shell("aboard {verb} $(scontrol show hostnames)", verb=verb)
    if rest:
        everywhere = format_shell("{command:shell} {rest:shell}", command=everywhere, rest=join_argv(rest))
    alone = join_argv(["aboard", verb, "localhost", *rest])
    suffix = f" ({escape_text(fold_names(names) if names else written)})" if written else ""
    seen = f"this is a Slurm job of {count} nodes{suffix}, but Aboard can't read its nodes from Slurm yet"
    variant = "named" if names else "any-job"
    raise AboardError(planning.SLURM_NODES, seen, variant, named=named, everywhere=everywhere, alone=alone)


def _parse_node_list(written: str) -> tuple[str, ...]:
    try:
        return expand_node_set(written) if written else ()
    except InputError:  # a node list syntax that we don't support
        return ()


def _read_number(env: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that is a number."""
    return next((int(env[name]) for name in names if env.get(name, "").isdecimal()), None)
