"""What may be a host, a user and a variable, and how the rest is shown."""

import pytest

from aboard.core.text.input_text import (
    find_env_name_error,
    find_host_error,
    find_user_error,
    format_count,
    point_at_column,
    suggest_word,
)
from aboard.diagnoses.untrusted import escape_text


@pytest.mark.parametrize("text", ["gpu01", "gpu01.cluster.local", "10.0.0.1", "fe80::1", "a_b-c", "_x", "::1", "1"])
def test_hosts(text: str) -> None:
    """Names and addresses that ssh knows are hosts."""
    assert find_host_error(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *["", "-x", ".", "..", ".a", "a b", "a\n", "a'b", 'a"b', "$(id)", "`id`", "a;b", "a/b", "é", "a\0", "a\x1b[2J"],
        *["a:22", "fe80::1%eth0", "a@b", "x" * 254, "a*", "a,b"],
    ],
)
def test_no_hosts(text: str) -> None:
    """What a shell or ssh would take for something else is no host."""
    assert find_host_error(text) is not None


@pytest.mark.parametrize(("count", "said"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (4096, "4,096 nodes")])
def test_counts(count: int, said: str) -> None:
    """One is one."""
    assert format_count(count, "node") == said


@pytest.mark.parametrize("text", ["", "-l", "a b", "a\n", "a;b", "a@b", "$USER"])
def test_no_users(text: str) -> None:
    """The same holds for users."""
    assert find_user_error(text) is not None
    assert find_user_error("alice.b-c_1") is None


@pytest.mark.parametrize("text", ["", "1A", "A-B", "A B", "A\n", "É", "A=B"])
def test_no_variables(text: str) -> None:
    """A variable's name is an identifier of ASCII letters."""
    assert find_env_name_error(text) is not None
    assert find_env_name_error("NCCL_IB_HCA") is None


def test_a_terminal_is_not_obeyed() -> None:
    """What is shown holds no control characters, and not too much of it."""
    assert escape_text("a\x1b[2J\nb") == "a\\x1b[2J\\nb"
    assert len(escape_text("x" * 1000)) == 80
    assert point_at_column("ab\ncd", 3) == "    ab�cd\n       ^"


def test_caret_in_long_text() -> None:
    """The caret stays under its character when the text is cut around it."""
    line, caret = point_at_column("x" * 200 + "!" + "x" * 200, 200).splitlines()
    assert line[caret.index("^")] == "!"


def test_did_you_mean() -> None:
    """A near word is asked for; without one, the known words are listed."""
    assert suggest_word("slot", ["user", "slots"]) == "did you mean 'slots'?"
    assert suggest_word("zzz", ["user", "slots"]) == "known here: user, slots"
