"""Secrets leave a stream before it reaches a disk or a wire."""

import base64
import json
import re
import urllib.parse

import pytest
from hypothesis import given, strategies as st

from aboard.agent.secret_redaction import MASK, SHORTEST, Redactor
from aboard.core.secrets import secret_names

# Parts of one word with few letters: secrets overlap, repeat and begin with one another all the time.
WORD = "abaabaaabaab"
SPANS = st.tuples(st.integers(0, len(WORD)), st.integers(0, len(WORD))).map(sorted).map(lambda span: WORD[slice(*span)])


def test_nodes_mask_as_the_head_does() -> None:
    """The agent is shipped alone, so it has its own copy of the mask and of the shortest length."""
    assert (MASK.decode(), SHORTEST) == (secret_names.MASK, secret_names.SHORTEST_SECRET)


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


SECRET = 'p@ss/w"örd 4711?'  # noqa: S105 - made up


def list_encoded_forms(secret: str) -> dict[str, str]:
    data = secret.encode()
    forms = {
        f"base64 after {count} bytes": base64.b64encode(b"user:"[:count] + data + b":more").decode()
        for count in range(4)
    }
    forms["URL-safe base64"] = base64.urlsafe_b64encode(data).decode()
    forms["URL"] = urllib.parse.quote(secret, safe="")
    forms["form"] = urllib.parse.quote_plus(secret)
    forms["JSON"] = json.dumps({"password": secret})
    forms["hex"] = data.hex()
    return forms


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("form", list_encoded_forms(SECRET))
def test_encoded_forms_of_a_secret_are_masked(form: str, step: int) -> None:
    """Its base64, wherever it lies in what was encoded, and as it stands in a URL, in JSON and in hexadecimal."""
    text = f"sent {list_encoded_forms(SECRET)[form]} and more\n".encode()
    redactor = Redactor([SECRET])
    out = b"".join([redactor.feed(text[at : at + step]) for at in range(0, len(text), step)]) + redactor.flush()
    assert MASK in out
    # The characters at the edges of a base64 depend on its neighbours, too.
    assert len(out) < len(text) - len(SECRET) + 12


def test_lines_of_a_key_are_masked() -> None:
    """A logger prints each line of a key with its own prefix."""
    lines = [f"{number}" * 64 for number in range(3)]
    redactor = Redactor(["\n".join(["BEGIN", *lines, "END"])])
    text = "".join(f"INFO {line}\n" for line in lines).encode()
    assert redactor.feed(text) + redactor.flush() == b"INFO [secret]\n" * 3


@given(
    st.lists(st.binary(min_size=6, max_size=300).map(lambda data: data.hex()), min_size=1, max_size=12),
    st.lists(st.integers(0, 11), max_size=6),
    st.integers(1, 200),
)
def test_long_secrets_are_found_at_every_place(secrets: list[str], order: list[int], step: int) -> None:
    """Filters by words miss none, whatever its length and place, and however reads cut it."""
    text = b"".join(b"x" * number + secrets[number % len(secrets)].encode() for number in order)
    redactor = Redactor(secrets)
    out = b"".join([*(redactor.feed(text[at : at + step]) for at in range(0, len(text), step)), redactor.flush()])
    pattern = re.compile("|".join(sorted(map(re.escape, secrets), key=len, reverse=True)).encode())
    assert out == pattern.sub(MASK, text)
