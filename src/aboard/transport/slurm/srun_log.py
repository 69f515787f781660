"""Parses srun's stderr: why a step did not start on a node.

The messages are those of Slurm 22.05; they are not translated.
"""

import contextlib
import re

from aboard.core.cluster.node_sets import expand_node_set
from aboard.diagnoses import InputError
from aboard.diagnoses.runs import death
from aboard.diagnoses.slurm import steps
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport.agent_bootstrap import TOO_OLD, classify_start_failure, extract_line, find_last_line
from aboard.transport.transport import StreamEnding

# A cause comes before what follows from it: without munge, the job can't be confirmed either.
_REASONS = (
    (UnreachableReason.NO_SRUN, steps.NO_SRUN),
    (UnreachableReason.SLURMD_REFUSED, steps.SLURMD_REFUSED),
    (UnreachableReason.PROLOG, steps.PROLOG),
    (UnreachableReason.NO_SLURMD, steps.NO_SLURMD),
    (UnreachableReason.NODE_FAILED, death.NODE_GONE),
    (UnreachableReason.MUNGE, steps.MUNGE),
    (UnreachableReason.NO_SLURMCTLD, steps.NO_SLURMCTLD),
    (UnreachableReason.SRUN_PORTS, steps.SRUN_PORTS),
    (UnreachableReason.JOB_ENDED, steps.JOB_ENDED),
    (UnreachableReason.NOT_IN_JOB, steps.NOT_IN_JOB),
    (UnreachableReason.STEP_REFUSED, steps.STEP_REFUSED),
)
# Reasons that one node of a step can be for all of them.
_UNNAMED = (UnreachableReason.NOT_IN_JOB, UnreachableReason.STEP_REFUSED)
# The first line of our own in the messages of a step of several nodes.
SHARED_STEP = "aboard: a step of several nodes"
_ABOUT_NODES = re.compile(
    r"failed on node (?P<one>[\w.-]{1,255}): |Node failure on (?P<lost>\S+)"
    r"|^srun: error: (?P<tasks>[\w.,\[\]-]+): tasks? [\d,-]+:|slurmstepd-(?P<daemon>[\w.-]{1,255}): "
    r"|slurm_receive_msgs?: \[\[(?P<peer>[\w.-]{1,255})\]:\d{1,5}\] failed"
)
_EXIT_CODE = re.compile(r"^srun: error: \S+: tasks? [\d,-]+: Exited with exit code (\d+)$", re.MULTILINE)
# slurmstepd could not start Python; the task's exit code is then errno.
_NOT_STARTED = re.compile(r"^(?:(?>.*?error: ).*chdir|.*error: execve\(\)).*$", re.MULTILINE)
_CANCELLED = re.compile(r"^(?>.*?\*\*\* (?:STEP|JOB) ).* CANCELLED AT .*$", re.MULTILINE)
# One node that can't start its task ends the step on all of them; a line above names the node and its reason.
_ABORTED = re.compile(r"^srun: (?:Job step aborted|Force Terminated).*$", re.MULTILINE)
# What srun says when we end it while it waits.
_ENDED_BY_US = re.compile(r"^srun: Cancelled pending job step with signal \d+.*", re.MULTILINE | re.DOTALL)
_LAUNCH_FAILED = re.compile(r"^srun: error: Application launch failed:.*$", re.MULTILINE)


def classify_srun_failure(stderr: str, node: str, exit_code: int | None = None) -> tuple[UnreachableReason, str]:
    """Why srun ended before the agent started on the node, and the line that shows it.

    STEP_ABORTED means that another node ended the step: without that node it may start.
    """
    text = _ENDED_BY_US.sub("", select_node_lines(stderr, node).replace(SHARED_STEP, ""))
    launch_failed = _LAUNCH_FAILED.search(text)
    text = _LAUNCH_FAILED.sub("", text)
    for reason, diagnosis in _REASONS:
        matches = (message.regex.search(text) for message in diagnosis.messages)
        if match := next(filter(None, matches), None):
            line = extract_line(text, match.start(), match.start())
            # Of several nodes, it does not say which one.
            unnamed = reason in _UNNAMED and SHARED_STEP in stderr
            return UnreachableReason.STEP_ABORTED if unnamed else reason, line
    if launch_failed:
        return UnreachableReason.STEP_ABORTED, _find_culprit(stderr, node) or launch_failed[0].strip()
    for reason, pattern in ((UnreachableReason.JOB_ENDED, _CANCELLED), (UnreachableReason.NO_PYTHON, _NOT_STARTED)):
        if match := pattern.search(text):
            return reason, match[0].strip()
    ended = _EXIT_CODE.search(text)
    if ended or TOO_OLD in text:
        own = "\n".join(line for line in text.splitlines() if not line.startswith("srun: "))
        return classify_start_failure(StreamEnding(exit_code=int(ended[1]) if ended else exit_code, stderr=own))
    if aborted := _ABORTED.search(text):
        return UnreachableReason.STEP_ABORTED, _find_culprit(stderr, node) or aborted[0].strip()
    return UnreachableReason.SRUN_FAILED, find_last_line(text) or "srun printed nothing"


def select_node_lines(stderr: str, node: str) -> str:
    """The lines of srun that don't name other nodes alone; all lines if the node is unknown ("")."""
    return "\n".join(line for line in stderr.splitlines() if not node or _concerns_node(line, node))


def _concerns_node(line: str, node: str) -> bool:
    named = _ABOUT_NODES.search(line)
    if named is None:
        return True
    nodes = next(filter(None, named.groups()))
    with contextlib.suppress(InputError):
        return node in expand_node_set(nodes)
    return True


def _find_culprit(stderr: str, node: str) -> str:
    """The line about another node that could not start its task."""
    lines = [line.strip() for line in stderr.splitlines() if not _concerns_node(line, node)]
    return next((line for line in lines if "failed on node" in line or "Node failure" in line), "")
