"""What a batch script says about failed nodes: --no-kill, without which one ends the whole Slurm job, and --requeue.

Slurm does not report it, so this reads what the user wrote: the batch script, salloc's arguments, their variables.
"""

import re
from collections.abc import Mapping, Sequence

from aboard.core.slurm.allocation import SlurmAllocation

_DIRECTIVE = re.compile(r"#SBATCH(?:\s.*)?\s(?:--no-kill(?:=(?P<value>\S*))?|-k)(?=\s|$)")
_REQUEUE = re.compile(r"#SBATCH(?:\s.*)?\s--requeue(?=\s|$)")
_VARIABLES = ("SBATCH_NO_KILL", "SALLOC_NO_KILL")


def find_no_kill(env: Mapping[str, str], *, script: str | None = None, salloc: Sequence[str] = ()) -> bool | None:
    """Whether the job has --no-kill; None if nothing that can be read here decides it.

    `script` is the batch script, and `salloc` the argv of the salloc that started this shell. sbatch's own command line
    can't be read, so False is for what the script says.
    """
    if any(name in env for name in _VARIABLES) or any(word in {"--no-kill", "-k"} for word in salloc):
        return True
    if script is not None:
        return any(found["value"] != "off" for line in _list_directives(script) if (found := _DIRECTIVE.match(line)))
    return False if salloc else None


def has_requeue(script: str) -> bool:
    """Whether the batch script says that it may start again."""
    return any(_REQUEUE.match(line) for line in _list_directives(script))


def describe_missing_no_kill(
    allocation: SlurmAllocation, *, no_kill: bool | None, batch: bool, recovers: bool = False
) -> str | None:
    """A note for a job that a failed node would end; None if there is nothing to say.

    `recovers` says that the run would otherwise be restarted then.
    """
    if no_kill or len(allocation.nodes) == 1:
        return None
    ends = f"Slurm ends job {allocation.job} when one of its nodes fails"
    fix = ""
    if recovers:
        ends += ", and the run with it: it is not restarted"
        fix = "; ask for a job with: salloc --no-kill"
    if batch:
        return f"unless sbatch got --no-kill on its command line, {ends}; add to the script: #SBATCH --no-kill"
    if no_kill is None:
        return f"unless the job was requested with --no-kill, {ends}{fix}"
    return f"{ends}{fix}" if recovers else f"{ends}, because salloc ran without --no-kill"


def describe_batch_host(allocation: SlurmAllocation, batch_host: str) -> str | None:
    """A note for a run that is to outlive its nodes: it does not outlive the one where its conductor runs."""
    if not batch_host or len(allocation.nodes) == 1:
        return None
    return f"the run is controlled from {batch_host}: if that node fails, Slurm ends job {allocation.job}"


def _list_directives(script: str) -> list[str]:
    """The lines that sbatch reads: those before the first command."""
    directives: list[str] = []
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            directives.append(line)
        elif line.strip() and not line.startswith("#"):
            break
    return directives
