"""Probes that returned no usable result."""

from functools import cache

from aboard.diagnoses.diagnosis import Diagnosis, Severity, warning


@cache
def declare_unanswered(name: str) -> Diagnosis:
    """The diagnosis of a probe that returned no usable result."""
    return Diagnosis(
        code=f"unknown-{name}",
        title=f"the {name} probe returned no usable result",
        severity=Severity.WARN,
        symptoms=(f"{name} is unknown",),
        explanation="Aboard could not complete this check. The file or command that the check needs may be missing,"
        " unreadable or too slow, or its output may have a format that this version of Aboard doesn't recognize.",
        remedy="Run the command shown with the finding. If its output looks right, please open an issue that includes"
        " it.",
        fixes="{line:shell}",
    )


SHELL = warning(
    code="unknown-shell",
    title="the ranks' shell could not be probed",
    symptoms=("the shell that ranks get is unknown",),
    explanation="Aboard could not run `sh` on the node, or could not interpret its output, so the ranks' shell was not"
    " tested.",
    fixes="{line:shell ssh NODE 'sh -c true'}    # if it works, please open an issue",
)

LEFTOVERS = warning(
    code="unknown-leftovers",
    title="leftover processes on a node could not be listed",
    symptoms=("leftovers from earlier runs are unknown",),
    explanation="The node's processes could not be listed in time, so Aboard did not look for leftovers.",
    fixes="{line:shell ssh NODE 'ps -u $USER -o pid,stat,etime,args'}    # state D means blocked in the kernel,"
    " usually on a dead mount",
)

ENVIRONMENT = warning(
    code="unknown-environment",
    title="the environment and the script could not be checked on a node",
    symptoms=("whether the node has your Python environment and your script is not known",),
    explanation="The environment or the script could not be looked up in time. The environment, the working directory"
    " or the script may be on a dead mount.",
    remedy="Run the command shown with the finding. If it hangs, a mount is dead: see `aboard why storage-dead-mount`.",
    fixes="{look:shell}",
)

STORAGE_ROOM = warning(
    code="unknown-storage-room",
    title="free space for the run could not be measured",
    symptoms=("free space in the output directory is unknown",),
    explanation="The disk behind `output:` did not respond in time, or the node replied in a format that this version"
    " of Aboard doesn't recognize.",
    remedy="Run the command shown with the finding. If it hangs, the output directory's mount is dead:"
    " see `aboard why storage-dead-mount`.",
    fixes="{look:shell}",
)
