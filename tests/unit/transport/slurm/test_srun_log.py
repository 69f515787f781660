"""What srun says, recorded from Slurm 22.05, and what it means for one node."""

import pytest

from aboard.diagnoses import Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport.slurm.slurm_transport import SlurmTransport
from aboard.transport.slurm.srun_log import SHARED_STEP, classify_srun_failure
from aboard.transport.transport import StreamEnding

NOT_CONFIRMED = "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 7"
NO_MUNGE = f"""\
srun: error: If munged is up, restart with --num-threads=10
srun: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory
srun: error: slurm_send_node_msg: auth_g_create: REQUEST_HET_JOB_ALLOC_INFO has authentication error
srun: error: Unable to confirm allocation for job 7: Protocol authentication error
{NOT_CONFIRMED}
"""
NO_MUNGE_THERE = """\
srun: error: slurm_receive_msgs: [[n2]:6818] failed: Zero Bytes were transmitted or received
srun: error: Task launch for StepId=7.1 failed on node n2: Zero Bytes were transmitted or received
srun: error: Application launch failed: Zero Bytes were transmitted or received
srun: Job step aborted
"""
NO_SLURMD = """\
srun: error: Task launch for StepId=7.3 failed on node n2: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: Job step aborted
"""
NO_CONTROLLER = f"""\
srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)
{NOT_CONFIRMED}
"""
NO_TASK = "srun: error: Task launch for StepId=7.0 failed on node n2: "
REFUSED = "srun: error: Unable to create step for job 7: "
# What the stream of n1 keeps of it.
ABORTED = """\
slurmstepd-n1: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-11-16T19:55:35 ***
srun: error: Application launch failed: Job prolog failed
srun: Job step aborted
srun: error: n1: task 0: Killed
"""
CANCELLED = """\
slurmstepd-n1: error: *** STEP 1.5 ON n1 CANCELLED AT 2026-11-16T19:31:00 DUE TO TIME LIMIT ***
srun: error: n2: task 1: Terminated
srun: error: n1: task 0: Terminated
srun: Force Terminated StepId=1.5
"""
REASONS = {
    "srun: command not found": UnreachableReason.NO_SRUN,
    NO_MUNGE: UnreachableReason.MUNGE,
    NO_MUNGE_THERE: UnreachableReason.SLURMD_REFUSED,
    NO_SLURMD: UnreachableReason.NO_SLURMD,
    NO_CONTROLLER: UnreachableReason.NO_SLURMCTLD,
    f"{REFUSED}Socket timed out on send/recv operation": UnreachableReason.NO_SLURMCTLD,
    f"srun: error: Slurm job 7 has expired\n{NOT_CONFIRMED}": UnreachableReason.JOB_ENDED,
    f"{REFUSED}Job/step already completing or completed": UnreachableReason.JOB_ENDED,
    # A prolog that fails on n1 ends the job while n2 starts its task.
    f"{NO_TASK}Job credential revoked": UnreachableReason.JOB_ENDED,
    f"{NO_TASK}Job credential expired": UnreachableReason.SLURMD_REFUSED,
    f"{REFUSED}Requested node configuration is not available": UnreachableReason.NOT_IN_JOB,
    f"{REFUSED}Requested nodes are busy": UnreachableReason.STEP_REFUSED,
    f"{REFUSED}Invalid generic resource (gres) specification": UnreachableReason.STEP_REFUSED,
    f"{REFUSED}Memory required by task is not available": UnreachableReason.STEP_REFUSED,
    "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)": (
        UnreachableReason.STEP_REFUSED
    ),
    "srun: error: slurm_init_msg_engine_ports: all ports in range (60001, 60100) exhausted, cannot establish listening"
    " port": UnreachableReason.SRUN_PORTS,
    f"{NO_TASK}Job prolog failed": UnreachableReason.PROLOG,
    "srun: error: Node failure on n2": UnreachableReason.NODE_FAILED,
    "srun: error: Node failure on n[2-3]": UnreachableReason.NODE_FAILED,
    "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-16T19:31:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR"
    " DETAILS ***": UnreachableReason.NODE_FAILED,
    "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-16T19:31:00 ***": UnreachableReason.JOB_ENDED,
    "srun: error: something new": UnreachableReason.SRUN_FAILED,
}


@pytest.mark.parametrize(("stderr", "reason"), REASONS.items())
def test_a_step_that_does_not_start_has_its_reason(stderr: str, reason: UnreachableReason) -> None:
    """Each message of srun has one reason, and the line that shows it is one of them."""
    found, line = classify_srun_failure(stderr, "n2")
    assert found is reason
    assert line in stderr.splitlines()


@pytest.mark.parametrize(
    "stderr", [NO_SLURMD, NO_MUNGE_THERE, "srun: error: Node failure on n2\nsrun: Job step aborted"]
)
def test_a_node_is_not_blamed_for_another_one(stderr: str) -> None:
    """A step that ends because of n2 is worth another try on n1, and the line names n2."""
    reason, line = classify_srun_failure(stderr, "n1")
    assert reason is UnreachableReason.STEP_ABORTED
    assert "n2" in line


def test_a_step_that_another_node_ended_is_not_cancelled_by_anybody() -> None:
    """The lines about the other node may be missing: another try tells."""
    line = "srun: error: Application launch failed: Job prolog failed"
    assert classify_srun_failure(ABORTED, "n1") == (UnreachableReason.STEP_ABORTED, line)


def test_a_refusal_of_several_nodes_is_nobodys() -> None:
    """Slurm does not say which node it means; alone, each is told."""
    line = f"{REFUSED}Requested node configuration is not available"
    assert classify_srun_failure(f"{SHARED_STEP}\n{line}", "n1") == (UnreachableReason.STEP_ABORTED, line)


def test_an_srun_that_we_end_while_it_waits_has_what_it_waited_for() -> None:
    """What it says when it is ended is not about the job."""
    waits = "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)"
    ended = "srun: Cancelled pending job step with signal 15\nsrun: error: Unable to create step for job 7: Job/step"
    stderr = f"{waits}\n{ended} already completing or completed"
    assert classify_srun_failure(stderr, "n2") == (UnreachableReason.STEP_REFUSED, waits)
    with pytest.raises(Unreachable, match="temporarily disabled") as error:
        SlurmTransport().explain_timeout(StreamEnding(exit_code=None, stderr=stderr))
    assert error.value.reason is UnreachableReason.STEP_REFUSED
    assert SlurmTransport().explain_timeout(StreamEnding(exit_code=None))[0] == "starting a step"


def test_a_cancelled_step_says_why() -> None:
    """Slurm's own line is shown, with the time limit in it."""
    reason, line = classify_srun_failure(CANCELLED, "n1")
    assert reason is UnreachableReason.JOB_ENDED
    assert line.endswith("DUE TO TIME LIMIT ***")


def test_python_that_is_missing_on_the_node_is_not_slurms_fault() -> None:
    """Slurm reports that it can't start Python; an old Python reports itself; a script in its place is garbage."""
    missing = "slurmstepd-n2: error: execve(): /no/python3: No such file or directory"
    ended = "srun: error: n2: task 0: Exited with exit code"
    assert classify_srun_failure(f"{ended} 2\n{missing}", "n2") == (UnreachableReason.NO_PYTHON, missing)
    assert classify_srun_failure(f"aboard: python 3.6.8\n{ended} 1", "n2") == (UnreachableReason.OLD_PYTHON, "3.6.8")
    assert classify_srun_failure(f"boo\n{ended} 1", "n2") == (UnreachableReason.GARBAGE, "boo")


def test_silence_is_a_reason_too() -> None:
    """Without a word from srun, the message says so."""
    assert classify_srun_failure("", "n2") == (UnreachableReason.SRUN_FAILED, "srun printed nothing")
