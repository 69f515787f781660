"""What may be a host, a user and a variable, and how the rest is shown."""

import pytest

from aboard.core.words import did_you_mean, env_name_trouble, host_trouble, many, point_at, user_trouble, visible


@pytest.mark.parametrize("text", ["gpu01", "gpu01.cluster.local", "10.0.0.1", "fe80::1", "a_b-c", "_x", "::1", "1"])
def test_hosts(text: str) -> None:
    """Names and addresses that ssh knows are hosts."""
    assert host_trouble(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *["", "-x", ".", "..", ".a", "a b", "a\n", "a'b", 'a"b', "$(id)", "`id`", "a;b", "a/b", "é", "a\0", "a\x1b[2J"],
        *["a:22", "fe80::1%eth0", "a@b", "x" * 254, "a*", "a,b"],
    ],
)
def test_no_hosts(text: str) -> None:
    """What a shell or ssh would take for something else is no host."""
    assert host_trouble(text) is not None


@pytest.mark.parametrize(("count", "said"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (4096, "4,096 nodes")])
def test_counts(count: int, said: str) -> None:
    """One is one."""
    assert many(count, "node") == said


@pytest.mark.parametrize("text", ["", "-l", "a b", "a\n", "a;b", "a@b", "$USER"])
def test_no_users(text: str) -> None:
    """The same holds for users."""
    assert user_trouble(text) is not None
    assert user_trouble("alice.b-c_1") is None


@pytest.mark.parametrize("text", ["", "1A", "A-B", "A B", "A\n", "É", "A=B"])
def test_no_variables(text: str) -> None:
    """A variable's name is an identifier of ASCII letters."""
    assert env_name_trouble(text) is not None
    assert env_name_trouble("NCCL_IB_HCA") is None


def test_a_terminal_is_not_obeyed() -> None:
    """What is shown holds no control characters, and not too much of it."""
    assert visible("a\x1b[2J\nb") == "a\\x1b[2J\\nb"
    assert len(visible("x" * 1000)) == 80
    assert point_at("ab\ncd", 3) == "    ab�cd\n       ^"


def test_caret_in_long_text() -> None:
    """The caret stays under its character when the text is cut around it."""
    line, caret = point_at("x" * 200 + "!" + "x" * 200, 200).splitlines()
    assert line[caret.index("^")] == "!"


def test_did_you_mean() -> None:
    """A near word is asked for; without one, the known words are listed."""
    assert did_you_mean("slot", ["user", "slots"]) == "did you mean 'slots'?"
    assert did_you_mean("zzz", ["user", "slots"]) == "known here: user, slots"
