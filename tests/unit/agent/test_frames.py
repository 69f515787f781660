"""The frame protocol: any bytes in any pieces, and nothing that can be sent breaks the reader."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from aboard.agent import frames

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
MESSAGES = st.dictionaries(st.text(), st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3), max_leaves=5))


def _chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data cut at these places, in order."""
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: frames.Message) -> None:
    """What is packed is unpacked as the same, whatever text it holds."""
    body = frames.pack(message)
    assert int.from_bytes(body[: frames.HEADER], "big") == len(body) - frames.HEADER
    assert frames.unpack(body[frames.HEADER :]) == message


@given(st.text(alphabet=st.characters(categories=("Cs", "L", "Cc"))))
def test_surrogates_travel(text: str) -> None:
    """A file name that is no UTF-8 reaches Python as surrogates, and crosses the wire as such."""
    assert frames.unpack(frames.pack({"name": text})[frames.HEADER :]) == {"name": text}


@given(st.binary())
def test_bytes_travel_as_text(data: bytes) -> None:
    """A child's output may be any bytes; they are the same at the other end of the JSON."""
    carried = frames.unpack(frames.pack({"data": frames.bytes_to_text(data)})[frames.HEADER :])["data"]
    assert frames.text_to_bytes(carried) == data


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 400), max_size=30))
def test_any_chunking_gives_the_same_bodies(bodies: list[bytes], cuts: list[int]) -> None:
    """Where reads cut the stream changes nothing, and no more than the open frame is held meanwhile."""
    stream = b"".join(len(body).to_bytes(frames.HEADER, "big") + body for body in bodies)
    splitter = frames.FrameSplitter()
    found = []
    for chunk in _chunks(stream, cuts):
        found += splitter.feed(chunk)
        assert splitter._held < frames.HEADER + max(map(len, bodies))
    assert found == bodies
    assert not splitter._pieces


def test_a_frame_over_the_limit_is_refused_by_its_header() -> None:
    """Four bytes that claim 4 GB end the stream before any of it is kept."""
    with pytest.raises(frames.FrameError, match="over the limit"):
        frames.FrameSplitter().feed(b"\xff\xff\xff\xff")


def test_a_message_over_the_limit_is_not_packed() -> None:
    """Our own end keeps the limit that the other end holds it to."""
    with pytest.raises(frames.FrameError, match="over the limit"):
        frames.pack({"data": "x" * frames.LIMIT})


@given(st.binary(max_size=200))
def test_whatever_is_no_object_is_a_frame_error(body: bytes) -> None:
    """Garbage is either a message or a FrameError, never another exception."""
    try:
        message = frames.unpack(body)
    except frames.FrameError:
        return
    assert isinstance(message, dict)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"a":' + b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"id":' + b"9" * 10_000 + b"}",
    ],
    ids=["empty", "list", "null", "text", "no utf-8", "deep and open", "deep", "long number"],
)
def test_hostile_bodies_are_frame_errors(body: bytes) -> None:
    """Deep nesting and numbers that take hours to read are refused like any other garbage."""
    with pytest.raises(frames.FrameError):
        frames.unpack(body)


def test_the_error_shows_only_the_beginning() -> None:
    """A hostile frame of 8 MB does not become an 8 MB message on a screen."""
    with pytest.raises(frames.FrameError) as caught:
        frames.unpack(json.dumps("x" * 100_000).encode())
    assert len(str(caught.value)) < 200
