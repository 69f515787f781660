"""Refuses to run as one of several copies that srun started."""

from collections.abc import Mapping, Sequence

from aboard.core.text.shell_quoting import join_argv
from aboard.diagnoses import AboardError
from aboard.diagnoses.slurm import allocation

# Step ids from here up are reserved by Slurm, such as for batch scripts and interactive shells (slurm.h).
_FIRST_SPECIAL_STEP = 0xFFFF_FFF0


def refuse_srun_copies(env: Mapping[str, str], argv: Sequence[str]) -> None:
    """Refuses to run as one of several copies that `srun` started: each would start the whole run."""
    step = _read_number(env, "SLURM_STEP_ID")
    copies = _read_number(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    # With --pty, only the first task has a terminal, which is interactive.
    if step is None or step >= _FIRST_SPECIAL_STEP or copies is None or copies <= 1 or "SLURM_PTY_PORT" in env:
        return
    seen = f"srun started {copies} copies of aboard; start only one, because it starts the ranks on all nodes itself"
    raise AboardError(allocation.COPIES, seen, command=join_argv(["aboard", *argv]))


def _read_number(env: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that is a number."""
    return next((int(env[name]) for name in names if env.get(name, "").isdecimal()), None)
