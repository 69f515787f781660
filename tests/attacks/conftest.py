"""Real hosts for the attacks; each pytest process has sandboxes of its own."""

from collections.abc import Iterator

import pytest
from launching import build_sandbox

from aboard.sandbox import Sandbox


@pytest.fixture(scope="session")
def box() -> Iterator[Sandbox]:
    """Two hosts that the attacks of this session share: leave them as you found them."""
    with build_sandbox("attacks", nodes=2) as made:
        yield made
