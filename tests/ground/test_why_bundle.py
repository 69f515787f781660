"""Runs that hang or die on real hosts, packed, and judged again from the archive: what was said live is said again."""

import json
import re
import time
from contextlib import nullcontext

import pytest
from deadlines import wait_until
from launching import Launches
from stalls import Training, told, training

from aboard.core.text.byte_sizes import KIB
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.network.links import MtuBlackHole

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("torch_a")]

SOON = 40.0
# A hang of eight ranks was 16 KiB: anything much larger is kept by mistake.
MOST_BYTES = 64 * KIB
PLANTED = {"HF_TOKEN": "hf_PlantedPlantedPlantedPlanted01", "COLOUR": "planted-mauve"}
HEAD = re.compile(r"^✗ (\S+) +(\S+)", re.MULTILINE)


def packed(going: Training, *words: str) -> str:
    """The run's bundle, within its size and with nothing planted in it; its name."""
    run, launches = going.run, going.launches
    made = launches.aboard("bundle", run, "--yes", "-o", f"{run}.tar.gz", *words)
    assert made.returncode == 0, made.stderr
    inside = launches.box.head.run(["sh", "-c", f"gzip -cd {launches.folder}/{run}.tar.gz"]).stdout
    size = int(launches.box.head.run(["stat", "-c", "%s", f"{launches.folder}/{run}.tar.gz"]).stdout)
    told(f"{run}: {size:,} bytes, {len(inside):,} unpacked\n{made.stdout}")
    assert "look-" in made.stdout
    assert size < MOST_BYTES
    for planted in (*PLANTED.values(), "/home/crew"):
        assert planted not in inside
    return f"{run}.tar.gz"


def verdict(said: str) -> tuple[str, str, str]:
    """The code and nodes of the first finding, and the ranks that it sees."""
    head = HEAD.search(said)
    assert head is not None, said
    rank = re.search(r"ranks? ([\d,-]+)", said[head.end() :])
    return head[1], head[2], rank[1] if rank else ""


@pytest.mark.parametrize(
    ("kind", "rank", "code"),
    [("lock", 2, "hang-lock"), pytest.param("", 0, "hang-big-packets", marks=pytest.mark.nightly)],
)
def test_a_hang_is_judged_again(four: Launches, kind: str, rank: int, code: str) -> None:
    """The same code, node and rank live, from the record of the run that was stopped, and from its bundle."""
    fault = nullcontext() if kind else inject_temporarily(four.box, four.box.host("n3"), MtuBlackHole(network="fabric"))
    with training(four, env={"SIZE": "100000", **PLANTED}) as going:
        wait_until(lambda: going.step() > 15, 120, lambda: f"it makes steps: {going.going.said[-2000:]}")
        with fault:
            since = going.trouble(kind, rank, 600) if kind else time.time()
            going.verdict(since, SOON)
            live = verdict(four.aboard("why", going.run).stdout)
            four.aboard("stop", going.run, "--now")
            going.going.wait(60)
        assert live[:2] == (code, "n3")
        assert verdict(four.aboard("why", going.run).stdout) == live
        again = four.aboard("why", "--bundle", packed(going), "-v")
        assert verdict(again.stdout) == live
        assert "recorded verdict" not in again.stdout
        assert "not   a stopped rank" in again.stdout
        assert again.returncode == 2


@pytest.mark.nightly
def test_a_death_is_judged_again(four: Launches) -> None:
    """A rank that left, and the others that died of it: the same from a bundle whose addresses are hidden."""
    with training(four, env=PLANTED) as going:
        wait_until(lambda: going.step() > 5, 120, lambda: f"it makes steps: {going.going.said[-2000:]}")
        going.trouble("leave", 1, 0)
        assert going.going.wait(60) != 0
        (found, *_others) = json.loads(four.read(going.run, "findings.json"))
        assert (found["code"], found["nodes"], found["ranks"]) == ("hang-uneven", ["n2"], [1])
        live = four.aboard("why", going.run).stdout
        again = four.aboard("why", "--bundle", packed(going, "--hide-addresses")).stdout
        for said in (live, again):
            assert verdict(said) == ("hang-uneven", "n2", "1")
            assert "recorded verdict" not in said
