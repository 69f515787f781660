"""Runs that are slow, or that the kernel ends, on four real hosts: who keeps the others waiting, and what keeps it."""

import json
import re
import time

import pytest
from deadlines import wait_until
from launching import Launches
from stalls import Training, told, training

from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.host.control_groups import CpuQuota, MemoryLimit

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("torch_a")]


def test_a_rank_that_falls_behind(four: Launches) -> None:
    """Every step takes as long as its slowest rank: that one is named by itself, with the numbers.

    The record has who was late, and what each node did meanwhile.
    """
    # Within the first reports of steps, whose pace is not the usual one yet.
    env = {"TROUBLE": "slow", "TROUBLE_RANK": "2", "TROUBLE_STEP": "14", "TROUBLE_SECONDS": "1.0"}
    with training(four, env=env) as going:
        wait_until(lambda: going.step() >= 14, 180, lambda: f"it makes steps: {going.going.said[-2000:]}")
        since = time.time()
        seconds, found = going.verdict(since, 50)
        told(f"slow-rank: {seconds:.1f} s")
        assert (found["code"], found["nodes"], found["ranks"]) == ("slow-rank", ["n3"], [2])
        assert re.match(
            r"rank 2 on n3 arrived (?:9\d\d\.\d ms|1\.[0-3] s) later than the others at \d+ of the last \d+ ",
            found["seen"],
        )
        wait_until(lambda: is_late(going, rank=2), 60, lambda: four.read(going.run, "lateness.jsonl"))
        lines = four.read(going.run, "samples.jsonl").rpartition("\n")[0].splitlines()
        sampled = {line["node"]: line["figures"]["node"] for line in map(json.loads, lines)}
    assert sorted(sampled) == ["n1", "n2", "n3", "n4"]
    for node, figures in sampled.items():
        assert {"load", "memory", "sent", "received"} <= set(figures), node


def is_late(going: Training, *, rank: int) -> bool:
    """Whether the record has all four ranks, and only this one made the others wait in the last window."""
    *_, last = [json.loads(line) for line in going.launches.read(going.run, "lateness.jsonl").splitlines()] or [{}]
    late = dict(zip(last.get("ranks", ()), last.get("mean", ()), strict=True))
    others = sum(mean for other, mean in late.items() if other != rank)
    return bool(last.get("measured") == [[0, 3]] and late.get(rank, 0) > 10 * others)


# Four ranks that compute: on two cores they starve every neighbour.
@pytest.mark.nightly
@pytest.mark.serial
def test_a_node_whose_cores_are_rationed(four: Launches) -> None:
    """A control group's quota is told from code that is slow; asked, it is named with its share."""
    env = {
        "TROUBLE": "compute",
        "TROUBLE_RANK": "all",
        "TROUBLE_STEP": "0",
        "TROUBLE_SECONDS": "0.1",
        "STEP_SECONDS": "0",
    }
    with inject_temporarily(four.box, four.box.host("n3"), CpuQuota(cores=0.15)), training(four, env=env) as going:
        wait_until(lambda: going.step() >= 8, 300, lambda: f"it makes steps: {going.going.said[-2000:]}")
        said = ""

        def named() -> bool:
            nonlocal said
            said = four.aboard("why", going.run, "-v").stdout
            return "slow-throttled  n3" in said

        wait_until(named, 90, "the quota is named")
        assert "was throttled" in " ".join(said.split())


# The kernel counts its kills for the whole machine: another test's rank that dies meanwhile would be told as one.
@pytest.mark.serial
def test_a_rank_that_the_kernel_kills_for_memory(four: Launches) -> None:
    """A SIGKILL is the kernel's when its own counter has grown, and is told with the limit."""
    env = {"TROUBLE": "memory", "TROUBLE_RANK": "1", "TROUBLE_STEP": "5"}
    with inject_temporarily(four.box, four.box.host("n2"), MemoryLimit(mib=1500)), training(four, env=env) as going:
        assert going.going.wait(240) == 137
        assert "block run-out-of-memory n2" in going.going.said
