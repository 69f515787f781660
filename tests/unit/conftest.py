"""Fixtures of the unit tests."""

from collections.abc import Iterator

import pytest
from keeping import Run, wait_for


@pytest.fixture
def clean() -> Iterator[list[Run]]:
    """The runs of a test, each of which must have left neither process nor file."""
    runs: list[Run] = []
    yield runs
    for run in runs:
        wait_for(run.gone, 5)
