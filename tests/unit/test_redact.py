"""Secrets leave a stream before it reaches a disk or a wire."""

import re

from hypothesis import given
from hypothesis import strategies as st

from aboard.agent.secret_redaction import MASK, SHORTEST, Redactor

# Parts of one word with few letters: secrets overlap, repeat and begin with one another all the time.
WORD = "abaabaaabaab"
SPANS = st.tuples(st.integers(0, len(WORD)), st.integers(0, len(WORD))).map(sorted).map(lambda span: WORD[slice(*span)])


@given(st.lists(SPANS.filter(lambda span: len(span) >= SHORTEST), min_size=1, max_size=4), st.lists(SPANS, max_size=12))
def test_chunking_changes_nothing(secrets: list[str], parts: list[str]) -> None:
    """However reads cut it, each secret is masked as it would be in one piece, and all else is unchanged."""
    redactor = Redactor(secrets)
    out = b"".join([*(redactor.feed(part.encode()) for part in parts), redactor.flush()])
    longest_first = sorted(secrets, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)).encode())
    assert out == pattern.sub(MASK, "".join(parts).encode())
    for secret in secrets:
        assert secret.encode() not in out.replace(MASK, b"|")


@given(st.binary(max_size=200), st.integers(1, 7))
def test_other_bytes_are_untouched(data: bytes, step: int) -> None:
    """Binary output without a secret in it comes out byte for byte."""
    redactor = Redactor(["hf_0123456789abcdef"])
    pieces = [redactor.feed(data[at : at + step]) for at in range(0, len(data), step)]
    assert b"".join([*pieces, redactor.flush()]) == data


def test_a_secret_that_begins_with_another_leaves_no_tail() -> None:
    """The short one is complete at the end of a read; the long one, whose beginning it is, may still come."""
    redactor = Redactor(["token-1", "token-1-and-its-tail"])
    assert redactor.feed(b"x token-1") + redactor.feed(b"-and-its-tail y") + redactor.flush() == b"x [secret] y"


def test_a_secret_at_the_very_end_is_masked_by_the_flush() -> None:
    """What was held back as a beginning of a longer one may be a whole secret itself."""
    redactor = Redactor(["token-1", "token-1-and-its-tail"])
    assert redactor.feed(b"token-1") + redactor.flush() == MASK


def test_a_value_too_short_to_be_a_secret_is_left() -> None:
    """Masking every `1` would make a log unreadable and hide nothing."""
    redactor = Redactor(["1", "", "abc"])
    assert redactor.feed(b"epoch 1 abc") + redactor.flush() == b"epoch 1 abc"


def test_nothing_is_held_longer_than_it_may_be_a_secret() -> None:
    """A prompt without a newline shows at once: only what could become a secret waits."""
    assert Redactor(["token-1"]).feed(b"ready to") == b"ready "
