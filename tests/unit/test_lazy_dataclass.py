"""A dataclass whose methods are generated late is one like any other."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, asdict, field, fields, is_dataclass, replace

import pytest

from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Point:
    """Two numbers."""

    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list, compare=False)


@dataclass(frozen=True, kw_only=True)
class Named(Point):
    """A subclass of one that may not be generated yet."""

    name: str


@dataclass(frozen=True, eq=False)
class Alone:
    """Compared by identity."""

    x: int


class Doubled(Point):
    """A plain subclass with a constructor of its own."""

    def __init__(self, x: int) -> None:
        super().__init__(x=2 * x)


def test_it_is_a_dataclass() -> None:
    """Fields, defaults, equality, hash, repr, order of inheritance."""
    named = Named(x=1, name="a")
    assert is_dataclass(Point)
    assert [each.name for each in fields(Named)] == ["x", "y", "tags", "name"]
    assert (named.y, named.tags) == (2, [])
    assert named == Named(x=1, name="a", tags=["other"]) != Named(x=2, name="a")
    assert hash(Alone(1)) != hash(Alone(1))
    assert Alone(1) != Alone(1)
    assert repr(named) == "Named(x=1, y=2, tags=[], name='a')"
    assert asdict(replace(named, y=3)) == {"x": 1, "y": 3, "tags": [], "name": "a"}
    assert Doubled(3).x == 6
    assert len({Point(x=1), Point(x=1), Point(x=2)}) == 2
    assert pickle.loads(pickle.dumps(named)) == copy.deepcopy(named) == named  # noqa: S301 - our own bytes


def test_it_is_frozen_and_refuses_what_it_does_not_know() -> None:
    """As the standard library's."""
    point = Point(x=1)
    with pytest.raises(FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Point(x=1, z=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Point(1)  # type: ignore[call-arg]


def test_threads_that_meet_it_first_get_the_same() -> None:
    """However many of them make their first instance at once."""
    for _ in range(50):

        @dataclass(frozen=True, kw_only=True)
        class Fresh:
            x: int

        with ThreadPoolExecutor(8) as pool:
            made = set(pool.map(lambda number: Fresh(x=number % 2), range(32)))
        assert len(made) == 2
