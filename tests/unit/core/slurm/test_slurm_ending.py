"""Why Slurm ends a job, and how long its ranks have; from the output of Slurm 22.05."""

from datetime import datetime

import pytest

from aboard.core.slurm.job_ending import (
    DEFAULT_KILL_WAIT,
    EndingCause,
    JobConditions,
    classify_ending,
    is_preempted,
    parse_kill_wait,
    parse_preemption,
    read_partition,
)

NOW = datetime(2026, 11, 16, 19, 37, 0)  # noqa: DTZ001 - Slurm's times are local
CONDITIONS = JobConditions(kill_wait=30.0, preempt_mode="CANCEL", preempt_grace=60.0)
RUNNING = "JobId=4 JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0"


def _classify(shown: str, signal: str, conditions: JobConditions = CONDITIONS) -> tuple[EndingCause, float | None]:
    ending = classify_ending(4, shown, signal, NOW, conditions)
    return ending.cause, ending.seconds


def test_usr1_announces_the_time_limit_and_leaves_the_time_until_it() -> None:
    """The ranks have until the limit, less what the conductor needs."""
    shown = f"{RUNNING} TimeLimit=00:10:00 EndTime=2026-11-16T19:39:00 SuspendTime=None Partition=debug"
    assert _classify(shown, "SIGUSR1") == (EndingCause.TIME_LIMIT, 118.0)
    assert classify_ending(4, shown, "SIGUSR1", NOW, CONDITIONS).why == "job 4 reaches its time limit in 2 min"


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ("Reason=None Restarts=0 EndTime=2026-11-16T19:37:00 PreemptTime=None", EndingCause.CANCELLED),
        ("Reason=TimeLimit Restarts=0 EndTime=2026-11-16T19:37:00", EndingCause.TIME_LIMIT),
        ("Reason=None Restarts=0 EndTime=2026-11-16T19:37:00 PreemptTime=2026-11-16T19:37:00", EndingCause.PREEMPTED),
        ("Reason=None Restarts=1 EndTime=Unknown", EndingCause.REQUEUED),
    ],
)
def test_term_while_the_job_ends_leaves_kill_wait(fields: str, cause: EndingCause) -> None:
    """Slurm shows all of them as COMPLETING; the reason, the time of preemption and the restarts tell them apart."""
    assert _classify(f"JobId=4 JobState=COMPLETING {fields} Partition=debug", "SIGTERM") == (cause, 28.0)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        (" DUE TO TIME LIMIT", EndingCause.TIME_LIMIT),
        (" DUE TO PREEMPTION", EndingCause.PREEMPTED),
        (" DUE TO JOB REQUEUE", EndingCause.REQUEUED),
        ("", EndingCause.CANCELLED),
    ],
)
def test_a_busy_slurmctld_leaves_the_notice_of_the_step(reason: str, cause: EndingCause) -> None:
    """Without an answer, or one without a reason, what slurmstepd said to the step names the cause."""
    notice = f"slurmstepd-n1: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-11-16T19:37:00{reason} ***"
    for shown in ("", "JobState=COMPLETING Reason=None Restarts=0"):
        assert classify_ending(4, shown, "SIGTERM", NOW, CONDITIONS, notice).cause is cause


def test_usr1_is_the_notice_of_the_time_limit_without_an_answer() -> None:
    """Slurm sends it for nothing else; how long the ranks have is unknown then, whatever a step was told before."""
    notice = "slurmstepd-n1: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-11-16T19:37:00 ***"
    ending = classify_ending(4, "", "SIGUSR1", NOW, CONDITIONS, notice)
    assert (ending.cause, ending.seconds) == (EndingCause.TIME_LIMIT, None)


def test_a_signal_that_comes_late_leaves_less() -> None:
    """KillWait counts from the end of the job, and never below zero."""
    shown = "JobState=COMPLETING Reason=None Restarts=0 EndTime=2026-11-16T19:36:50"
    assert _classify(shown, "SIGTERM")[1] == 18.0
    assert _classify(shown, "SIGTERM", JobConditions(kill_wait=5.0))[1] == 0.0


def test_a_job_that_started_before_is_not_taken_for_requeued() -> None:
    """Restarts counts earlier starts too."""
    shown = "JobState=COMPLETING Reason=None Restarts=2 EndTime=2026-11-16T19:37:00"
    assert _classify(shown, "SIGTERM", JobConditions(restarts=2))[0] is EndingCause.CANCELLED


def test_a_notice_of_preemption_leaves_the_grace_time_and_kill_wait() -> None:
    """The job still runs; where Slurm requeues such jobs, this one is to be requeued."""
    noticed = f"{RUNNING} EndTime=Unknown PreemptTime=2026-11-16T19:36:55"
    assert is_preempted(noticed)
    assert _classify(noticed, "SIGTERM") == (EndingCause.PREEMPTED, 83.0)
    dated = f"{RUNNING} EndTime=2026-11-16T19:37:40 PreemptTime=2026-11-16T19:36:55"
    requeues = JobConditions(kill_wait=30.0, preempt_mode="REQUEUE", preempt_grace=60.0)
    ending = classify_ending(4, dated, "SIGTERM", NOW, requeues)
    assert (ending.cause, ending.seconds, ending.is_notice) == (EndingCause.REQUEUED, 68.0, True)
    unwilling = dated.replace("Requeue=1", "Requeue=0")
    assert classify_ending(4, unwilling, "SIGTERM", NOW, requeues).cause is EndingCause.PREEMPTED


def test_a_term_from_somebody_else_has_no_limit() -> None:
    """The job runs on: nobody kills the ranks but we."""
    shown = f"{RUNNING} EndTime=2026-11-16T20:37:00 PreemptTime=None"
    assert not is_preempted(shown)
    assert _classify(shown, "SIGTERM") == (EndingCause.UNKNOWN, None)


def test_without_a_reply_the_ranks_have_kill_wait() -> None:
    """The controller may be down while slurmd ends the job."""
    assert _classify("", "SIGTERM") == (EndingCause.UNKNOWN, 28.0)
    assert classify_ending(4, "", "SIGTERM", NOW, CONDITIONS).why == "Slurm ends job 4"


def test_settings_of_the_cluster_are_read() -> None:
    """From scontrol show config, job and partition; defaults stand in for what is missing."""
    assert parse_kill_wait("KeepAliveTime           = SYSTEM_DEFAULT\nKillWait                = 5 sec\n") == 5.0
    assert parse_kill_wait("slurm_load_ctl_conf error: Connection refused") == DEFAULT_KILL_WAIT
    shown = "PartitionName=low\n   ExclusiveUser=NO GraceTime=6 Hidden=NO\n   OverTimeLimit=NONE PreemptMode=CANCEL\n"
    assert parse_preemption(shown) == ("CANCEL", 6.0)
    assert parse_preemption("") == ("OFF", 0.0)
    assert read_partition("Scheduler=Main Partition=low AllocNode:Sid=head:0") == "low"
