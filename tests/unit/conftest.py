"""Fixtures of the unit tests."""

from collections.abc import Iterator

import pytest
from hypothesis import settings
from keeping import Run, wait_for

# A busy machine is no failure: how long one example takes says nothing about what it holds.
settings.register_profile("aboard", deadline=None)
settings.load_profile("aboard")


@pytest.fixture
def clean() -> Iterator[list[Run]]:
    """The runs of a test, each of which must have left neither process nor file."""
    runs: list[Run] = []
    yield runs
    for run in runs:
        wait_for(run.gone, 5)
