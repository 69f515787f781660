"""The state of a Slurm job in words, from real output of `scontrol show job -o` (Slurm 22.05)."""

from dataclasses import replace
from datetime import datetime

import pytest

from aboard.core.slurm.job_state import JobPhase, JobStatus, describe_job, parse_job_status
from aboard.diagnoses.untrusted import Untrusted

NOW = datetime(2026, 11, 16, 19, 0)  # noqa: DTZ001 - Slurm's times have no zone
LINE = (
    "JobId=12 JobName=my job=1 UserId=crew(1000) GroupId=crew(1000) MCS_label=N/A Priority=4294901758 Nice=0"
    " Account=(null) QOS=(null) JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts=1 BatchFlag=1"
    " Reboot=0 ExitCode={code} RunTime=00:00:07 TimeLimit=1-00:00:00 TimeMin=N/A SubmitTime=2026-11-16T18:00:00"
    " EligibleTime=2026-11-16T18:00:00 AccrueTime=Unknown StartTime={start} EndTime=Unknown Deadline=N/A"
    " Partition=debug AllocNode:Sid=head:1 ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} BatchHost=n1"
    " NumNodes=2 NumCPUs=4 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=4,node=2,billing=4"
    " MinCPUsNode=1 Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)"
    " Command=/home/crew/my job.sh WorkDir=/home/crew StdErr=/home/crew/slurm-12.out StdIn=/dev/null"
    " StdOut=/home/crew/slurm-12.out Power= \n"
)


def parse(
    *, state: str = "RUNNING", reason: str = "None", code: str = "0:0", start: str = "Unknown", nodes: str = "n[1-2]"
) -> JobStatus:
    status = parse_job_status(LINE.format(state=state, reason=reason, code=code, start=start, nodes=nodes))
    assert status is not None
    return status


def test_a_line_of_scontrol_is_parsed() -> None:
    """Values with blanks and equals signs do not shift the others."""
    assert replace(parse(), reason=Untrusted("")) == JobStatus(
        id=12,
        state="RUNNING",
        time_limit="1-00:00:00",
        partition="debug",
        nodes="n[1-2]",
        batch_host="n1",
        output=Untrusted("/home/crew/slurm-12.out"),
        script=Untrusted("/home/crew/my job.sh"),
        restarts=1,
    )


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: Invalid job id specified\n", "JobId=x JobState=RUNNING"])
def test_other_output_is_not_a_job(text: str) -> None:
    """Errors and partial lines have no status."""
    assert parse_job_status(text) is None


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "jobs with a higher priority come first (Priority)"),
        ("Resources", "the nodes or GPUs it needs are in use (Resources)"),
        (
            "ReqNodeNotAvail,_UnavailableNodes:n[1-2]",
            "a node it needs is down, drained or reserved (ReqNodeNotAvail,_UnavailableNodes:n[1-2])",
        ),
        ("QOSMaxJobsPerUserLimit", "you have as many running jobs as the QOS allows (QOSMaxJobsPerUserLimit)"),
        ("QOSGrpGRES", "the jobs of this QOS use as much as it allows (QOSGrpGRES)"),
        ("AssocGrpCPUMinutesLimit", "your account uses as much as it may (AssocGrpCPUMinutesLimit)"),
        ("PartitionDown", "the partition is closed (PartitionDown)"),
        ("Dependency", "another job has to end first (Dependency)"),
        ("DependencyNeverSatisfied", "it depends on a job that failed, so it never starts (DependencyNeverSatisfied)"),
        (
            "launch_failed_requeued_held",
            "a node could not start it, so Slurm put it on hold (launch_failed_requeued_held)",
        ),
        (
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
            "nodes it needs are down, drained or reserved for other partitions",
        ),
        ("BrandNew\x1b[2J", "Slurm says BrandNew\\x1b[2J"),
    ],
)
def test_a_pending_job_says_why_it_waits(reason: str, words: str) -> None:
    """In words, then Slurm's code; a code that we don't know is shown without control characters."""
    said = describe_job(parse(state="PENDING", reason=reason, nodes="(null)"), NOW)
    assert said == f"is waiting: {words}; Slurm has no estimate of its start"


def test_a_new_job_has_no_reason_yet() -> None:
    """Nothing is said about its start, which Slurm can't know."""
    assert describe_job(parse(state="PENDING"), NOW) == "is waiting: the scheduler has not looked at the job yet"


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("2026-11-16T19:00:30", "it is due to start now"),
        ("2026-11-16T21:05:00", "estimated start 21:05, in 2 h 5 min"),
        ("2026-11-19T20:00:00", "estimated start 2026-11-19 20:00, in 3 d 1 h"),
    ],
)
def test_an_estimated_start_is_shown(start: str, said: str) -> None:
    """As a time of day and as a duration; with the date if it is more than a day away."""
    assert describe_job(parse(state="PENDING", reason="Resources", start=start), NOW).endswith(f"; {said}")


@pytest.mark.parametrize(
    ("reason", "stuck"), [("JobHeldUser", True), ("PartitionTimeLimit", True), ("Resources", False), ("None", False)]
)
def test_a_job_that_cannot_start_is_recognised(reason: str, *, stuck: bool) -> None:
    """On hold or above a limit, waiting does not help."""
    assert parse(state="PENDING", reason=reason).is_stuck is stuck


@pytest.mark.parametrize(
    ("state", "code", "phase", "said", "exit_code"),
    [
        ("RUNNING", "0:0", JobPhase.RUNNING, "is running on n[1-2]", None),
        ("CONFIGURING", "0:0", JobPhase.RUNNING, "is starting on n[1-2]", None),
        ("COMPLETING", "1:0", JobPhase.ENDING, "is ending", 1),
        ("COMPLETED", "0:0", JobPhase.ENDED, "completed", 0),
        ("FAILED", "3:0", JobPhase.ENDED, "failed with exit code 3", 3),
        ("FAILED", "0:9", JobPhase.ENDED, "failed with exit code 137", 137),
        (
            *("FAILED", "0:53", JobPhase.ENDED),
            *("failed: Slurm can't open its output, because the directory is missing on the node", 181),
        ),
        ("TIMEOUT", "0:15", JobPhase.ENDED, "reached its time limit of 1-00:00:00", 143),
        ("PREEMPTED", "0:0", JobPhase.ENDED, "was preempted by a job with a higher priority", 0),
        ("NEW_STATE", "0:0", JobPhase.ENDED, "ended as NEW_STATE", 0),
    ],
)
def test_a_state_is_said_in_words(state: str, code: str, phase: JobPhase, said: str, exit_code: int | None) -> None:
    """Running, ending and ended, with the exit code of the script."""
    status = parse(state=state, code=code)
    assert (status.phase, describe_job(status, NOW), status.exit_code) == (phase, said, exit_code)
