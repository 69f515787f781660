"""The state of a Slurm job, parsed from `scontrol show job -o`, and in words."""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum

from aboard.core.text.durations import DAY, format_duration
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass

_FIELD = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=")
# What Slurm prints for a missing value.
_NO_VALUES = ("", "(null)", "N/A", "Unknown", "None", "UNLIMITED")
# Names of nodes, partitions and states; anything else is not shown and not used in a command.
_NAME = re.compile(r"[\w.,:*\[\]-]+")
_DUE_SECONDS = 60


# Slurm reports signal 53, which Linux does not have by that name, for a script whose output it can't open.
NO_OUTPUT_CODE = 128 + 53


class JobPhase(Enum):
    """What a job's state means for somebody who follows it; a job that ends is ENDING until all nodes are free."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


_PHASES = {
    JobPhase.PENDING: ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
    JobPhase.RUNNING: ("RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"),
    JobPhase.ENDING: ("COMPLETING", "STAGE_OUT"),
}
_PHASE_OF = {state: phase for phase, states in _PHASES.items() for state in states}

# The first that matches; the words follow "waiting: ". Codes as in squeue(1) and slurm's resource_limits page.
_PENDING_REASONS: tuple[tuple[str, str], ...] = (
    (r"None|WaitingForScheduling", "the scheduler has not looked at the job yet"),
    (r"Priority", "jobs with a higher priority come first"),
    (r"Resources", "the nodes or GPUs it needs are in use"),
    (r"ReqNodeNotAvail.*", "a node it needs is down, drained or reserved"),
    (r"DependencyNeverSatisfied", "it depends on a job that failed, so it never starts"),
    (r"Dependency", "another job has to end first"),
    (r"PartitionDown|PartitionInactive", "the partition is closed"),
    (r"PartitionNodeLimit", "it asks for more nodes than the partition allows, or they are down or drained"),
    (r"PartitionConfig", "the partition does not have what it asks for"),
    (r"PartitionTimeLimit", "its time limit is above the partition's"),
    (r"BeginTime", "its start time has not come"),
    (r"Licenses", "it needs a license that is in use"),
    (r"JobHeldUser", "you put it on hold"),
    (r"JobHeldAdmin", "an administrator put it on hold"),
    (r"(?i:launch.failed.requeued.held|JobLaunchFailure)", "a node could not start it, so Slurm put it on hold"),
    (r"(?i:job.requeued.in.held.state)", "it was requeued and is on hold"),
    (r"BadConstraints", "no node has the features it asks for"),
    (r"InvalidAccount", "the account is invalid"),
    (r"InvalidQOS", "the QOS is invalid"),
    (r"Reservation|ReservationDeleted", "its reservation has not begun, or was deleted"),
    (r"Prolog|Cleaning", "Slurm prepares its nodes"),
    (r"NodeDown", "a node it needs is down"),
    (r"(?i:nodes.required.for.job.are.down.*)", "nodes it needs are down, drained or reserved for other partitions"),
    (r"QOSMaxJobsPerUserLimit|QOSJobLimit", "you have as many running jobs as the QOS allows"),
    (r"AssociationJobLimit|AssocMaxJobsLimit|AssocGrpJobsLimit", "your account has as many running jobs as it may"),
    (r"QOSMax\w*|QOSMinGRES|QOSTimeLimit", "it asks for more than the QOS allows for one job or user"),
    (r"QOS\w*", "the jobs of this QOS use as much as it allows"),
    (r"AssocMax\w*|AssociationTimeLimit", "it asks for more than your account allows for one job"),
    (r"Assoc\w*", "your account uses as much as it may"),
    (r"MaxMemPerLimit", "it asks for more memory than the partition allows"),
)
_SAID_IN_FULL = re.compile(r"None|WaitingForScheduling|(?i:nodes.required.for.job.are.down.*)")
_NO_REASON = ("None", "WaitingForScheduling")
# Reasons that only a person can remove; the others pass by themselves.
_STUCK = re.compile(
    r"(?is:DependencyNeverSatisfied|PartitionConfig|PartitionTimeLimit|JobHeld\w+|launch.failed.requeued.held|JobLaunchFailure"
    r"|job.requeued.in.held.state|BadConstraints|InvalidAccount|InvalidQOS|QOSMax\w*PerJob|AssocMax\w*PerJob.*)"
)

_END_WORDS: Mapping[str, str] = {
    "COMPLETED": "completed",
    "CANCELLED": "was cancelled",
    "FAILED": "failed",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost a node, and Slurm ended it",
    "PREEMPTED": "was preempted by a job with a higher priority",
    "OUT_OF_MEMORY": "ran out of memory",
    "BOOT_FAIL": "ended because a node did not boot",
    "DEADLINE": "reached its deadline",
    "REVOKED": "was moved to another cluster",
}


# Ends the comment of a run's job, before the run's id; and what is before that if its script has started no ranks.
RUN_MARK, UNMONITORED = "aboard:", "not-monitored"


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """One job as Slurm reports it. `state` is Slurm's word, `reason` why it waits or ended, `start` ISO or "".

    A pending job's `start` is an estimate. `exit_code` is the script's, 128 + N for signal N; None before the end.
    """

    id: int
    state: str
    reason: Untrusted = Untrusted("")
    start: str = ""
    time_limit: str = ""
    partition: str = ""
    nodes: str = ""
    batch_host: str = ""
    output: Untrusted = Untrusted("")
    script: Untrusted = Untrusted("")
    restarts: int = 0
    exit_code: int | None = None
    is_unmonitored: bool = False

    @property
    def phase(self) -> JobPhase:
        return _PHASE_OF.get(self.state, JobPhase.ENDED)

    @property
    def is_stuck(self) -> bool:
        """Whether a pending job starts only after somebody did something."""
        return self.phase is JobPhase.PENDING and _STUCK.fullmatch(self.reason.raw()) is not None


def parse_job_status(text: str) -> JobStatus | None:
    """The job in the output of `scontrol show job -o ID`; None if the output is something else.

    Of a heterogeneous job or an array, the first part.
    """
    lines = text.strip().splitlines()
    fields = _split_fields(lines[0]) if lines else {}
    job, state = fields.get("JobId", ""), _read_name(fields, "JobState")
    if not job.isdecimal() or not state:
        return None
    ended = _PHASE_OF.get(state) not in (JobPhase.PENDING, JobPhase.RUNNING)
    return JobStatus(
        id=int(job),
        state=state,
        reason=Untrusted(fields.get("Reason", "")),
        start=_read_name(fields, "StartTime"),
        time_limit=_read_name(fields, "TimeLimit"),
        partition=_read_name(fields, "Partition"),
        nodes=_read_name(fields, "NodeList"),
        batch_host=_read_name(fields, "BatchHost"),
        output=Untrusted(fields.get("StdOut", "")),
        script=Untrusted(fields.get("Command", "")),
        restarts=int(count) if (count := fields.get("Restarts", "")).isdecimal() else 0,
        exit_code=_parse_exit_code(fields.get("ExitCode", "")) if ended else None,
        is_unmonitored=f"{UNMONITORED} {RUN_MARK}" in lines[0],
    )


def describe_job(status: JobStatus, now: datetime) -> str:
    """The state and its reason in words, without the job's id: "is waiting: …", "is running on n[1-4]"."""
    if status.phase is JobPhase.PENDING:
        start = "" if status.reason.as_known(_NO_REASON) else _describe_start(status.start, now)
        return f"is waiting: {describe_reason(status.reason)}{start}"
    if status.phase is JobPhase.RUNNING:
        special = {"CONFIGURING": "is starting", "SUSPENDED": "is suspended", "STOPPED": "is stopped"}
        return f"{special.get(status.state, 'is running')}{f' on {status.nodes}' if status.nodes else ''}"
    if status.phase is JobPhase.ENDING:
        return "is ending"
    return describe_end(status)


def describe_reason(reason: Untrusted) -> str:
    """Why a job waits, followed by Slurm's own word for it."""
    code = reason.raw()
    words = next((words for pattern, words in _PENDING_REASONS if re.fullmatch(pattern, code)), None)
    if words is None:
        return f"Slurm says {reason.visible(200)}"
    return words if _SAID_IN_FULL.fullmatch(code) else f"{words} ({reason.visible(200)})"


def describe_end(status: JobStatus) -> str:
    """How a job ended, with the exit code of its script if Slurm did not end it."""
    words = _END_WORDS.get(status.state, f"ended as {status.state}")
    if status.exit_code == NO_OUTPUT_CODE:
        return f"{words}: Slurm can't open its output, because the directory is missing on the node"
    if status.state == "FAILED" and status.exit_code:
        return f"{words} with exit code {status.exit_code}"
    if status.state == "CANCELLED" and not (status.nodes or status.batch_host):
        return f"{words} while it waited"
    if status.state == "TIMEOUT" and status.time_limit:
        return f"{words} of {status.time_limit}"
    return words


def _describe_start(start: str, now: datetime) -> str:
    """The estimated start; times of Slurm have no zone, and `now` is the local time too."""
    try:
        at = datetime.fromisoformat(start)
    except ValueError:
        return "; Slurm has no estimate of its start"
    seconds = (at - now.replace(tzinfo=None)).total_seconds()
    if seconds < _DUE_SECONDS:
        return "; it is due to start now"
    clock = f"{at:%H:%M}" if seconds < DAY else f"{at:%Y-%m-%d %H:%M}"
    return f"; estimated start {clock}, in {format_duration(seconds)}"


def _parse_exit_code(text: str) -> int | None:
    """The exit code of `CODE:SIGNAL`."""
    code, _, signal = text.partition(":")
    if not (code.isdecimal() and signal.isdecimal()):
        return None
    return 128 + int(signal) if int(signal) else int(code)


def _split_fields(line: str) -> dict[str, str]:
    """Values have blanks of their own: each ends where the next name begins."""
    names = list(_FIELD.finditer(line))
    ends = [*(name.start() for name in names[1:]), len(line)]
    return {name[1]: line[name.end() : end].rstrip() for name, end in zip(names, ends, strict=False)}


def _read_name(fields: Mapping[str, str], key: str) -> str:
    text = fields.get(key, "")
    return text if text not in _NO_VALUES and _NAME.fullmatch(text) else ""
