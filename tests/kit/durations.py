"""The order in which workers take tests: what takes longest first, so that none of them idles at the end.

`tests/durations.json` has the seconds that a test of each module takes on average; `scripts/stages.py ci
--save-durations` writes it. A module that is not in it counts as average.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import pytest


def read_durations(path: Path) -> dict[str, float]:
    """Seconds by the path of a test module; none if there is no such file."""
    durations: dict[str, float] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return durations


def sort_longest_first(items: list[pytest.Item], durations: Mapping[str, float], *, by_module: bool) -> None:
    """Sorts the tests of a session, of which one worker runs a whole module, or else a whole `xdist_group`."""
    tests: list[tuple[str, str]] = []
    for item in items:
        module = item.nodeid.partition("::")[0]
        mark = item.get_closest_marker("xdist_group")
        tests.append((module, module if by_module else str(mark.args[0]) if mark else item.nodeid))
    items[:] = [items[number] for number in order_longest_first(tests, durations)]


def order_longest_first(tests: Sequence[tuple[str, str]], durations: Mapping[str, float]) -> list[int]:
    """The numbers of tests, given with their module and group: the longest group first, each in its own order."""
    average = median(durations.values()) if durations else 0.0
    seconds: dict[str, float] = {}
    for module, group in tests:
        seconds[group] = seconds.get(group, 0.0) + durations.get(module, average)
    return sorted(range(len(tests)), key=lambda number: -seconds[tests[number][1]])
