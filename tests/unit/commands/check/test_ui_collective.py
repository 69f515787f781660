"""The table of collectives on the screen and as plain lines: generated text, compared whole."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from aboard.commands.check.collective_table import CollectiveTable, format_collective_lines, round_size
from aboard.commands.check.report_view import format_check_json
from aboard.core.cluster.cluster import Cluster
from aboard.core.probes.facts import Facts, Unknown
from aboard.doctor.collective.multi_node_probe import COLLECTIVE, CollectiveResult
from aboard.doctor.collective.rank_report import compute_bandwidth

GOLDEN = Path(__file__).parents[2] / "golden" / "ui"
SIZES = [1024 * 4**power for power in range(8)]


def _facts(outcome: CollectiveResult | Unknown | None) -> Facts:
    outcomes = {} if outcome is None else {COLLECTIVE.name: outcome}
    return Facts(cluster=Cluster(nodes=()), contacts={}, outcomes=outcomes)


def _held() -> CollectiveResult:
    reduce = [compute_bandwidth("all_reduce", each, 9, 0.000_2 + each / 6e8, 3) for each in SIZES]
    # The last size took too long; ranks share the others as evenly as they can.
    gather = [compute_bandwidth("all_gather", each // 12 * 12, 9, 0.000_1 + each / 9e8, 3) for each in SIZES[:-1]]
    return CollectiveResult(nodes=("n1", "n2", "n3"), ranks=3, backend="gloo", torch="2.7.1", rows=(*reduce, *gather))


def _drawn(facts: Facts, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(CollectiveTable(facts), crop=False)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 50])
def test_the_table(width: int) -> None:
    """Both collectives side by side, one below the other where there is no room."""
    assert _drawn(_facts(_held()), width) == (GOLDEN / f"collective-{width}.txt").read_text("utf-8")


def test_plain_lines() -> None:
    """Each with what it is in its first word, to be found by grep."""
    lines = list(format_collective_lines(_facts(_held())))
    assert lines[0] == "collective: 3 ranks on 3 nodes, gloo, torch 2.7.1"
    assert lines[6] == "collective all_reduce 1 MiB 1.9 ms 0.54 GB/s, bus 0.72 GB/s"
    assert len(lines) == 16


@pytest.mark.parametrize("outcome", [None, Unknown(why="x"), CollectiveResult(why="torch is not installed")])
def test_nothing_where_none_was_held(outcome: CollectiveResult | Unknown | None) -> None:
    """No heading without rows."""
    assert _drawn(_facts(outcome), 80).strip() == ""
    assert list(format_collective_lines(_facts(outcome))) == []


def test_the_rows_are_in_the_json() -> None:
    """With sizes in bytes, seconds, and bandwidths in GB/s."""
    said = json.loads(format_check_json(_facts(_held()), [], [], 1.0))["multi_node_probes"]["collective"]
    assert said["rows"][0].keys() == {"op", "size", "rounds", "seconds", "algorithm", "bus"}
    assert said["nodes"] == ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("count", "whole"), [(1024, 1024), (1020, 1024), (512, 512), (1, 1), (900, 900), ((1 << 28) - 60, 1 << 28)]
)
def test_size_that_was_meant(count: int, whole: int) -> None:
    """A size that ranks could not share evenly has the name of the one that was meant."""
    assert round_size(count) == whole
