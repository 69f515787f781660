"""What every test session has: the usual signals and environment, an order, and a report for scripts/stages.py."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from deadlines import slowness
from durations import read_durations, sort_longest_first

# Where scripts/stages.py wants one JSON line for each test that starts and for each phase that is over.
REPORT = os.environ.pop("ABOARD_TEST_REPORT", None)
DURATIONS = Path(__file__).with_name("durations.json")
_USUAL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


def pytest_configure(config: pytest.Config) -> None:
    """A background shell starts programs with SIGINT ignored, nohup with SIGHUP; tests inherit neither.

    Nor do they inherit the active environment, in which what they start would find more than they gave it.
    """
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        os.environ.pop(name, None)
    for number in _USUAL:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    slowness()  # measured now: workers that start together each see what the others leave to it
    # Workers send their reports to the process that started them.
    if REPORT is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Report(Path(REPORT)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers take the longest groups first; a session without workers keeps the order of its files."""
    if not hasattr(config, "workerinput"):
        return
    grouped = config.getoption("loadgroup", default=False)
    if grouped and any(item.get_closest_marker("xdist_group") and "@" not in item.nodeid for item in items):
        raise pytest.UsageError(f"pytest-xdist ignores groups with pytest {pytest.__version__}; see pyproject.toml")
    sort_longest_first(items, read_durations(DURATIONS), by_module=not grouped)


class _Report:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write({"test": _strip_group(nodeid)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        text = report.longreprtext + "".join(f"\n{title}\n{part}" for title, part in report.sections)
        outcome = {
            "test": _strip_group(report.nodeid),
            "phase": report.when,
            "outcome": report.outcome,
            "seconds": report.duration,
        }
        self._write(outcome | ({"text": text} if report.failed else {}))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write({"test": report.nodeid, "phase": "collect", "outcome": "failed", "text": report.longreprtext})

    def _write(self, line: dict[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _strip_group(nodeid: str) -> str:
    """Without the "@group" that xdist appends to the tests that must share a worker."""
    return re.sub(r"@[\w-]+$", "", nodeid)
