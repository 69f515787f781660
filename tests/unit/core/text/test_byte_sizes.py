"""Bytes in words."""

import pytest

from aboard.core.text.byte_sizes import GIB, KIB, MIB, format_size


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (KIB, "1 KiB"),
        (1536, "1.5 KiB"),
        (64 * MIB, "64 MiB"),
        (954 * MIB + MIB // 3, "954 MiB"),
        (9.4 * GIB, "9.4 GiB"),
        (33.6 * GIB, "34 GiB"),
        (1000 * GIB, "1000 GiB"),
        (1.25 * 1024 * GIB, "1.2 TiB"),
        (10**18, "909495 TiB"),
    ],
)
def test_words(count: float, said: str) -> None:
    """As many digits as matter, in a unit of which there is at least one."""
    assert format_size(count) == said


@pytest.mark.parametrize(
    ("count", "said"), [(MIB - 1, "1 MiB"), (1023 * KIB, "1023 KiB"), (GIB - 4096, "1 GiB"), (9.96 * GIB, "10 GiB")]
)
def test_rounded_up(count: float, said: str) -> None:
    """Nothing is 1024 of a unit, and nothing is 10.0: what is rounded up to the next is called so."""
    assert format_size(count) == said


def test_less_than_nothing() -> None:
    """A difference that went the wrong way is told with its sign, and is no crash of what tells it."""
    assert [format_size(-1), format_size(-3 * GIB)] == ["-1 B", "-3 GiB"]
