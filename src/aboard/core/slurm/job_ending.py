"""Why Slurm ends a job, and how long its processes have until SIGKILL; from `scontrol show job -o`."""

import re
from datetime import datetime
from enum import Enum

from aboard.core.text.durations import format_duration
from aboard.lazy_dataclass import dataclass

# How the reason begins why no further job continues a training run.
NOT_CONTINUED = "not submitted again: "
# Slurm's own default, if its configuration can't be read.
DEFAULT_KILL_WAIT = 30.0
# The conductor stops the ranks this much earlier than Slurm kills it, and uses the rest to write its record.
RESERVE_SECONDS = 2.0
_FIELD = re.compile(r"(?:^|\s)(JobState|Reason|Restarts|EndTime|PreemptTime|Partition|Requeue)=(\S+)")
# What slurmstepd says when Slurm ends a step.
_NOTICE = re.compile(r"CANCELLED AT \S+(?: DUE TO (?P<reason>[A-Z ]+?))? \*\*\*")
_KILL_WAIT = re.compile(r"^KillWait\s*=\s*(\d+) sec", re.MULTILINE)
_GRACE_TIME = re.compile(r"\bGraceTime=(\d+)\b")
_PREEMPT_MODE = re.compile(r"\bPreemptMode=(\S+)")


class EndingCause(Enum):
    """Who ends a job; a requeued one starts again by itself."""

    TIME_LIMIT = "time limit"
    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class JobEnding:
    """Why a job ends, in words, and how long its ranks have; None if Slurm sets no limit.

    `is_notice`: the job still runs, and Slurm ends it later.
    """

    cause: EndingCause
    why: str
    seconds: float | None = None
    is_notice: bool = False


@dataclass(frozen=True, kw_only=True)
class JobConditions:
    """What decides how a job ends: seconds between SIGTERM and SIGKILL, and how its partition preempts jobs.

    `preempt_grace` is the notice before preemption, and `restarts` counts earlier starts of the same job.
    """

    kill_wait: float = DEFAULT_KILL_WAIT
    preempt_mode: str = "OFF"
    preempt_grace: float = 0.0
    restarts: int = 0


def classify_ending(
    job: int, shown: str, signal: str, now: datetime, conditions: JobConditions, notice: str = ""
) -> JobEnding:
    """Why the conductor of a job received this signal; `shown` is Slurm's description of the job, "" if unknown.

    `notice` is what Slurm said to a step, if it did: a busy slurmctld may not reply in time, or no longer know why.
    Slurm sends SIGUSR1 before the time limit if the script asks for it, and SIGTERM when it ends the job.
    """
    fields = _read_fields(shown)
    left = _count_seconds(now, fields.get("EndTime", ""))
    if fields.get("JobState") == "RUNNING":
        if "PreemptTime" in fields:
            return _describe_notice(job, fields, now, conditions)
        if signal == "SIGUSR1" and left is not None:
            why = f"job {job} reaches its time limit in {format_duration(max(0.0, left))}"
            return JobEnding(cause=EndingCause.TIME_LIMIT, why=why, seconds=max(0.0, left - RESERVE_SECONDS))
        return JobEnding(cause=EndingCause.UNKNOWN, why=f"aboard received {signal}")
    if signal == "SIGUSR1" and not fields:
        return JobEnding(cause=EndingCause.TIME_LIMIT, why=f"job {job} reaches its time limit")
    # The job is ending, or slurmctld does not reply.
    seconds = max(0.0, conditions.kill_wait + min(0.0, left or 0.0) - RESERVE_SECONDS)
    cause, why = _find_cause(job, fields, conditions, notice)
    return JobEnding(cause=cause, why=why, seconds=seconds)


def is_preempted(shown: str) -> bool:
    """Whether Slurm has chosen this job for preemption."""
    return "PreemptTime" in _read_fields(shown)


def read_partition(shown: str) -> str:
    """The partition of a job, "" if Slurm does not say."""
    return _read_fields(shown).get("Partition", "")


def parse_kill_wait(config: str) -> float:
    """KillWait in the output of `scontrol show config`."""
    match = _KILL_WAIT.search(config)
    return float(match[1]) if match else DEFAULT_KILL_WAIT


def parse_preemption(partition: str) -> tuple[str, float]:
    """PreemptMode and GraceTime in the output of `scontrol show partition NAME`."""
    mode, grace = _PREEMPT_MODE.search(partition), _GRACE_TIME.search(partition)
    return (mode[1] if mode else "OFF", float(grace[1]) if grace else 0.0)


def _find_cause(job: int, fields: dict[str, str], conditions: JobConditions, notice: str) -> tuple[EndingCause, str]:
    said = _NOTICE.search(notice)
    if not fields and said is None:
        return EndingCause.UNKNOWN, f"Slurm ends job {job}"
    reason = (said["reason"] or "") if said else ""
    # The reason of a job that is over may already be that of its last step.
    if reason == "TIME LIMIT" or fields.get("Reason") == "TimeLimit" or fields.get("JobState") == "TIMEOUT":
        return EndingCause.TIME_LIMIT, f"job {job} reached its time limit"
    if reason == "PREEMPTION" or "PreemptTime" in fields:
        return EndingCause.PREEMPTED, _describe_preemption(job)
    if reason == "JOB REQUEUE":
        return EndingCause.REQUEUED, f"Slurm requeued job {job}"
    # A requeued job has no other sign: its state is COMPLETING, then PENDING.
    if int(fields.get("Restarts", "0")) > conditions.restarts:
        preempts = conditions.preempt_mode.startswith("REQUEUE")
        return EndingCause.REQUEUED, f"Slurm requeued job {job}{', probably by preemption' if preempts else ''}"
    return EndingCause.CANCELLED, f"job {job} was cancelled"


def _describe_notice(job: int, fields: dict[str, str], now: datetime, conditions: JobConditions) -> JobEnding:
    """A job that is chosen for preemption runs on until the end of its grace time."""
    end = _count_seconds(now, fields.get("EndTime", ""))
    if end is None:
        end = (_count_seconds(now, fields["PreemptTime"]) or 0.0) + conditions.preempt_grace
    seconds = max(0.0, end + conditions.kill_wait - RESERVE_SECONDS)
    requeues = conditions.preempt_mode.startswith("REQUEUE") and fields.get("Requeue") == "1"
    cause = EndingCause.REQUEUED if requeues else EndingCause.PREEMPTED
    return JobEnding(cause=cause, why=_describe_preemption(job), seconds=seconds, is_notice=True)


def _describe_preemption(job: int) -> str:
    return f"job {job} is preempted by a job with a higher priority"


def _read_fields(shown: str) -> dict[str, str]:
    """The fields that have a value."""
    return {
        name: value
        for name, value in _FIELD.findall(shown)
        if value not in ("None", "Unknown", "N/A") and (name != "Restarts" or value.isdecimal())
    }


def _count_seconds(now: datetime, text: str) -> float | None:
    """The seconds from now to a time of Slurm, which is local and has no zone."""
    try:
        return (datetime.fromisoformat(text) - now.replace(tzinfo=None)).total_seconds()
    except ValueError:
        return None
