"""What the ranks use, read from the real /proc."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from deadlines import slowness, wait_until

from aboard.agent.supervisor.resource_usage import ResourceSampler

# A parent that waits and a child that computes, holding 64 MB.
TREE = """
import subprocess, sys
busy = "b = bytearray(b'x' * 2**26)\\nprint('ready', flush=True)\\nwhile 1: pass"
child = subprocess.Popen([sys.executable, "-Sc", busy])
sys.stdin.read()
child.kill()
"""


@pytest.fixture
def root() -> Iterator[int]:
    """The parent of a small tree; both end with the test."""
    with subprocess.Popen([sys.executable, "-Sc", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        yield parent.pid
        parent.communicate()


def test_a_tree_is_counted_whole(root: int) -> None:
    """Memory and time of the child's child are the child's; there is no rate before there is a second look."""
    gauges = ResourceSampler()
    first = gauges.children({"a": root})["a"]
    assert first["rss"] > 2**26
    assert "cpu" not in first
    rates = []

    def busy() -> bool:
        time.sleep(0.2)
        rates.append(gauges.children({"a": root})["a"]["cpu"])
        return bool(rates[-1] > 0.2 / slowness())

    wait_until(busy, 10)
    assert max(rates) < 1.5


def test_who_is_gone_has_no_figures(root: int) -> None:
    """A child that ended since is left out, and the others are told as ever."""
    gauges = ResourceSampler()
    gone = subprocess.Popen(["true"])
    gone.wait()
    told = gauges.children({"a": root, "gone": gone.pid})
    assert list(told) == ["a"]


def test_the_node_says_its_load_and_memory() -> None:
    """A load, and a part of the whole."""
    node = ResourceSampler().node()
    assert node["load"] >= 0
    assert 0 < node["memory"] < 1
