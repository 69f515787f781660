"""Real hosts for the attacks; each pytest process has sandboxes of its own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import build_sandbox

from aboard.sandbox import Sandbox


@pytest.fixture(scope="session")
def box() -> Iterator[Sandbox]:
    """Two hosts that the attacks of this session share: leave them as you found them."""
    with build_sandbox("attacks", nodes=2) as made:
        yield made


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for that of a Unix socket, of which there are 107 bytes."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)
