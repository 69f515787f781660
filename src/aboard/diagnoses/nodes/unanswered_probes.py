"""Questions that got no answer."""

from functools import cache

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import FixCommand

WHY = "What can't be asked can't be vouched for."


@cache
def declare_unanswered(name: str) -> Diagnosis:
    """For a probe of this name."""
    return Diagnosis(
        code=f"unknown-{name}",
        title=f"{name} could not be asked",
        severity=Severity.WARN,
        symptoms=(f"{name} stayed unknown",),
        explanation=f"{WHY} The file or the command is not there, may not be read, took too long, or answered in a way"
        " that this version doesn't know.",
        remedy="Type the command of the finding. If its output looks right, please open an issue with it.",
        fixes={
            "files": FixCommand("ssh {target} cat {glob:shell}"),
            "command": FixCommand("ssh {target} {command:shell}"),
            "by-hand": FixCommand("{line:shell}"),
        },
    )


SHELL = Diagnosis(
    code="unknown-shell",
    title="the shell that ranks get could not be asked",
    severity=Severity.WARN,
    symptoms=("the shell that ranks get stayed unknown",),
    explanation="What can't be asked can't be vouched for: `sh` could not be run there, or its answer makes no sense.",
    fixes="ssh {target} sh -c true    # if it works, please open an issue",
)

LEFTOVERS = Diagnosis(
    code="unknown-leftovers",
    title="a node could not say what is left on it",
    severity=Severity.WARN,
    symptoms=("what earlier runs left stayed unknown",),
    explanation="What can't be asked can't be vouched for: its processes could not be listed in time.",
    fixes="ssh {target} 'ps -u $USER -o pid,stat,etime,args'    # state D hangs in the kernel, mostly on a dead mount",
)

ENVIRONMENT = Diagnosis(
    code="unknown-environment",
    title="A node did not say whether it has the environment and the script",
    severity=Severity.WARN,
    symptoms=("whether it has your Python environment and your script is not known",),
    explanation="The paths did not answer in time: the environment, the working directory or the script may be on"
    " a dead mount.",
    remedy="Type the command of the finding. If it hangs, the mount is dead: see storage-dead-mount.",
    fixes="{look:shell}",
)

STORAGE_ROOM = Diagnosis(
    code="unknown-storage-room",
    title="The room for the run could not be measured",
    severity=Severity.WARN,
    symptoms=("whether the output directory has room stayed unknown",),
    explanation="What can't be asked can't be vouched for. The disk behind `output:` did not answer in time, or"
    " the node answered in a way that this version doesn't know.",
    remedy="Type the command of the finding. If it hangs, a mount is dead: `aboard why storage-dead-mount`.",
    fixes="{look:shell}",
)
