"""Why a Slurm job waits, and how Slurm ended it: each state and reason has its code and a fix."""

from datetime import datetime

import pytest

from aboard.core.slurm.job_state import parse_job_status
from aboard.diagnoses import Finding
from aboard.doctor.slurm.slurm_jobs import judge_job

NOW = datetime.fromisoformat("2026-11-16T19:00:00")
SHOWN = (
    "JobId=12 JobName=train UserId=me(1000) Priority=4 JobState={state} Reason={reason} Dependency=(null) Restarts=0"
    " ExitCode=0:15 TimeLimit=01:00:00 StartTime=2026-11-16T20:00:00 Partition=gpu NodeList={nodes} BatchHost=n1"
    " StdOut=/home/me/slurm-12.out"
)
WAITING = {
    "Resources": "slurm-waiting",
    "Priority": "slurm-waiting",
    "Licenses": "slurm-waiting",
    "QOSMaxJobsPerUserLimit": "slurm-limit",
    "QOSMaxGRESPerUser": "slurm-limit",
    "AssocGrpGRES": "slurm-limit",
    "JobHeldUser": "slurm-held",
    "JobHeldAdmin": "slurm-held",
    "launch_failed_requeued_held": "slurm-held",
    "DependencyNeverSatisfied": "slurm-impossible",
    "PartitionTimeLimit": "slurm-impossible",
    "BadConstraints": "slurm-impossible",
    "InvalidAccount": "slurm-impossible",
    "ReqNodeNotAvail,_UnavailableNodes:n2": "slurm-unavailable",
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions": "slurm-unavailable",
    "PartitionDown": "slurm-partition-closed",
}
ENDED = {
    "TIMEOUT": "log-time-limit",
    "PREEMPTED": "log-preempted",
    "CANCELLED": "log-cancelled",
    "NODE_FAIL": "run-node-gone",
    "OUT_OF_MEMORY": "host-oom-kills",
    "BOOT_FAIL": "slurm-ended",
    "FAILED": "slurm-ended",
}


def _judge(state: str, reason: str = "None", nodes: str = "n[1-2]") -> Finding | None:
    status = parse_job_status(SHOWN.format(state=state, reason=reason, nodes=nodes))
    assert status is not None
    return judge_job(status, NOW)


@pytest.mark.parametrize(("reason", "code"), WAITING.items())
def test_a_job_that_waits_has_its_reason(reason: str, code: str) -> None:
    """In words, with Slurm's own word and a command for this job."""
    finding = _judge("PENDING", reason, "(null)")
    assert finding is not None
    assert finding.code == code
    assert finding.seen.startswith("job 12 is waiting: ")
    assert finding.fix
    assert "{" not in finding.fix


def test_a_fix_names_the_nodes_that_are_missing() -> None:
    """Slurm says which nodes it can't use."""
    finding = _judge("PENDING", "ReqNodeNotAvail, UnavailableNodes:n[2-3]", "(null)")
    assert finding is not None
    assert "nodename='n[2-3]' state=resume" in finding.fix


@pytest.mark.parametrize(("state", "code"), ENDED.items())
def test_a_job_that_slurm_ended_has_its_code(state: str, code: str) -> None:
    """The same code as when its log says so."""
    finding = _judge(state)
    assert finding is not None
    assert finding.code == code
    assert finding.fix


@pytest.mark.parametrize("state", ["RUNNING", "CONFIGURING", "COMPLETING", "COMPLETED"])
def test_a_job_in_order_is_no_finding(state: str) -> None:
    """Nothing is wrong with a job that runs or completed."""
    assert _judge(state) is None
