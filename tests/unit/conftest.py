"""Fixtures of the unit tests."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import wait_until
from hypothesis import HealthCheck, settings
from supervisor_runs import Run

# A busy machine is no failure: how long an example takes, or is drawn, says nothing about what it holds.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("aboard", _PATIENT, max_examples=20)
settings.register_profile("nightly", _PATIENT, max_examples=500)
settings.load_profile("nightly" if os.environ.get("TEST_SIZE") == "nightly" else "aboard")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For CI's stage, each worker would import all modules, of which two thirds have no test with its mark."""
    if config.option.markexpr not in ("ci", "ci and not nightly") or not collection_path.name.startswith("test_"):
        return None
    return "mark.ci" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: Python's collector need not visit it after each test."""
    gc.freeze()


def pytest_runtest_teardown() -> None:
    """The time limit of a chat template leaves its signal ignored: what the next test starts would inherit that."""
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)


@pytest.fixture
def clean() -> Iterator[list[Run]]:
    """The runs of a test, each of which must have left neither process nor file."""
    runs: list[Run] = []
    yield runs
    for run in runs:
        wait_until(run.gone, 5, lambda: [(run.id, run.alive()) for run in runs])
