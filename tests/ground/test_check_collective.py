"""The collective on real hosts: a table where all is well; else the node or the link, by this subject alone."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from deadlines import slowness

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.network.firewall import FirewallDrop
from aboard.sandbox.faults.network.links import LinkRateLimit

# Times are judged: ranks of other tests would take the cores.
pytestmark = [pytest.mark.ground, pytest.mark.serial]

NOT_RENDEZVOUS = "1024-29499,29501-65535"
NODES = ("n1", "n2", "n3", "n4")
SHIM = "/private/shim"

BROKEN_TORCH = "raise ImportError('libtorch_cpu.so: cannot open shared object file: No such file or directory')\n"
# Adds one to what this node gives to each sum: a bit that flips on the way out.
WRONG_SUMS = """
import sys
from importlib.abc import MetaPathFinder

class Spoil(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        module = sys.modules.get("torch.distributed")
        if module is not None and hasattr(module, "all_reduce") and not hasattr(module, "spoiled"):
            right, module.spoiled = module.all_reduce, True
            def wrong(tensor, *words, **more):
                if tensor.dtype.itemsize == 4:
                    tensor += 1
                return right(tensor, *words, **more)
            module.all_reduce = wrong
        return None

sys.meta_path.insert(0, Spoil())
"""


def check(box: Sandbox, *options: str, only: bool = True) -> dict[str, Any]:
    own = ("--only", "collective") if only else ()
    words = ["aboard", "check", *NODES, "--json", "--set", f"cluster.python={sys.executable}", *own, *options]
    done = box.head.run(words, timeout=100 * slowness())
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def told(report: dict[str, Any]) -> list[tuple[str, set[str]]]:
    return [(each["code"], set(each["nodes"])) for each in report["findings"] if each["severity"] != "info"]


def in_time(report: dict[str, Any]) -> bool:
    """Within half a minute: far less than what torch waits for by itself."""
    return bool(report["seconds"] < 30 * slowness())


@pytest.fixture
def shim(box: Sandbox) -> Iterator[str]:
    """A directory that only n2 has, to be put before all others by the env."""
    node = box.host("n2")
    node.run(["mkdir", "-p", SHIM], root=True)
    yield SHIM
    node.run(["rm", "-rf", SHIM], root=True)


def put(box: Sandbox, path: str, text: str) -> None:
    done = box.host("n2").run(["sh", "-c", 'mkdir -p "$(dirname "$1")"; cat > "$1"', "sh", path], root=True, input=text)
    assert done.returncode == 0, done.stderr


def test_dropped_ports(box: Sandbox) -> None:
    """A node that accepts nothing is named by the collective itself, within half a minute."""
    with inject_temporarily(box, box.host("n3"), FirewallDrop(ports=NOT_RENDEZVOUS)):
        report = check(box)
    assert told(report) == [("collective-failed", {"n3"})]
    assert "10.77.0.3" in report["findings"][0]["seen"]
    assert in_time(report)


# After the fault above: the same nodes, mended.
def test_healthy(box: Sandbox) -> None:
    """The whole check holds a collective of all nodes, finds nothing, and has every size in its table."""
    report = check(box, only=False)
    assert report["findings"] == []
    held = report["multi_node_probes"]["collective"]
    assert (held["nodes"], held["ranks"], held["backend"]) == (list(NODES), 4, "gloo")
    assert [row["size"] for row in held["rows"] if row["op"] == "all_reduce"] == [1024 * 4**power for power in range(8)]
    assert all(row["seconds"] > 0 and row["bus"] > 0 for row in held["rows"])


@pytest.mark.nightly
def test_a_slow_link(box: Sandbox) -> None:
    """A node whose link carries a fraction is named, with both figures."""
    with inject_temporarily(box, box.host("n3"), LinkRateLimit(mbit=50)):
        report = check(box)
    assert told(report) == [("collective-slow-node", {"n3"})]
    assert "Mbit/s; typical" in report["findings"][0]["seen"]
    mended = check(box)
    assert mended["findings"] == []
    assert in_time(report)


def test_a_broken_torch(box: Sandbox, shim: str) -> None:
    """The node is named with what Python says, and the others hold theirs without it."""
    put(box, f"{shim}/torch/__init__.py", BROKEN_TORCH)
    report = check(box, "--set", f"cluster.env.PYTHONPATH={shim}")
    assert told(report) == [("collective-no-rank", {"n2"})]
    assert "libtorch_cpu.so" in report["findings"][0]["seen"]
    assert report["multi_node_probes"]["collective"]["nodes"] == ["n1", "n3", "n4"]


# Recorded reports of wrong sums are judged by unit tests.
@pytest.mark.nightly
def test_wrong_sums(box: Sandbox, shim: str) -> None:
    """A node that spoils what it sends is found by its sums."""
    put(box, f"{shim}/sitecustomize.py", WRONG_SUMS)
    report = check(box, "--set", f"cluster.env.PYTHONPATH={shim}")
    assert told(report) == [("collective-wrong", {"n2"})]


def test_no_torch(box: Sandbox) -> None:
    """A Python without it holds none, and says where."""
    done = box.head.run(
        ["aboard", "check", *NODES, "--only", "collective", "--set", "cluster.python=/usr/bin/python3"], timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert (
        "info collective-not-held n1,n2,n3,n4 seen: torch is not installed on n[1-4], so no collective was run"
        in done.stdout
    )
    assert "untested collective: torch is not installed on n[1-4]" in done.stdout
    assert "fine collective" not in done.stdout


# A node whose matrix multiplications take eight times as long, as on a GPU at its lowest clocks.
SLOW_MATHS = """
import torch
multiply = torch.matmul
torch.matmul = lambda one, other: [multiply(one, other) for _ in range(8)][-1]
"""


def test_a_node_that_computes_slowly_is_named(box: Sandbox, shim: str) -> None:
    """By --only compute, which measures CPUs, too; its memory is as fast as that of the other."""
    put(box, f"{shim}/sitecustomize.py", SLOW_MATHS)
    words = (
        "--only",
        "compute",
        "--set",
        f"cluster.python={sys.executable}",
        "--set",
        f"cluster.env.PYTHONPATH={shim}",
    )
    done = box.head.run(["aboard", "check", "n1", "n2", "--json", *words], timeout=100 * slowness())
    report = json.loads(done.stdout)
    assert told(report) == [("compute-slow", {"n2"})], done.stdout
    assert report["findings"][0]["seen"].startswith("the CPU: matrix multiplication at ")
    rates = [node["facts"]["compute-speed"]["slots"][0] for node in report["nodes"]]
    assert rates[0]["kind"] == rates[1]["kind"]
    assert {node["facts"]["dcgm"]["why"] for node in report["nodes"]} == {"not run: DCGM is not installed"}
    assert in_time(report)
