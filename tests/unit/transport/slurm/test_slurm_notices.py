"""Lines of srun by which a conductor outside of a batch script learns that Slurm ends its job."""

import asyncio

import pytest

from aboard.transport.slurm.step_notices import find_cancel_notice, is_cancel_notice


@pytest.mark.parametrize(
    "line",
    [
        "0: slurmstepd-n1: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-11-16T20:08:31 ***",
        "slurmstepd: error: *** JOB 10 ON n1 CANCELLED AT 2026-11-16T19:52:20 DUE TO TIME LIMIT ***",
        "slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2026-11-16T19:34:48 DUE TO PREEMPTION ***",
    ],
)
def test_a_line_that_says_so(line: str) -> None:
    """Slurm's own words, with and without srun's label."""
    assert is_cancel_notice(line)


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-16T19:34:48 DUE TO NODE FAILURE ***",
        "srun: error: n1: task 0: Killed",
        "3: the rank says CANCELLED AT once",
    ],
)
def test_other_lines(line: str) -> None:
    """A lost node has a finding of its own; one task that ends is not the step."""
    assert not is_cancel_notice(line)


def test_each_event_loop_has_its_own_notice() -> None:
    """Who waits in one loop is not woken by another's steps."""

    async def read() -> tuple[bool, bool, str]:
        before = await find_cancel_notice().wait(0)
        find_cancel_notice().give("first")
        find_cancel_notice().give("second")
        return before, await find_cancel_notice().wait(None), find_cancel_notice().line

    assert [asyncio.run(read()) for _ in range(2)] == [(False, True, "first")] * 2
