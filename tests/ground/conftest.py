"""Real hosts for the tests that need them; each pytest process has sandboxes of its own."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Protocol

import pytest
from guides import pack_outer_packages
from launching import Launches, build_sandbox

from aboard.sandbox import Sandbox, take_down_sandbox


class MakeBox(Protocol):
    """Builds a sandbox that is taken down when the test is over."""

    def __call__(self, *, nodes: int = 4, **shape: bool | int) -> Sandbox: ...


@pytest.fixture(scope="session")
def box() -> Iterator[Sandbox]:
    """Four nodes that tests share: leave them as you found them."""
    with build_sandbox("box", nodes=4) as made:
        yield made


@pytest.fixture(scope="session")
def four() -> Iterator[Launches]:
    """Four nodes with one rank each, and a second network for the training, which tests share."""
    with build_sandbox("four", nodes=4, slots=1, fabric=True) as made:
        yield Launches(made)


@pytest.fixture(scope="session")
def outer_packages() -> Iterator[None]:
    """Packages for the environments of bare hosts; there before any of these is built."""
    wheel = pack_outer_packages()
    yield
    if wheel is not None:
        shutil.rmtree(wheel.parent)


@pytest.fixture
def box_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A name that no other test has; whatever is up under it is taken down when the test is over."""
    name = f"test-{os.getpid()}-{abs(hash(request.node.nodeid)) % 10**8}"
    yield name
    take_down_sandbox(name)


@pytest.fixture
def make_box(request: pytest.FixtureRequest) -> Iterator[MakeBox]:
    """Sandboxes of any shape, for one test."""
    label = abs(hash(request.node.nodeid)) % 10**8
    with ExitStack() as stack:
        numbers = count()

        def make(*, nodes: int = 4, **shape: bool | int) -> Sandbox:
            return stack.enter_context(build_sandbox(f"{label}-{next(numbers)}", nodes=nodes, **shape))

        yield make
