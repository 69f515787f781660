"""Node sets: what they stand for, what is refused, and the way back."""

import pytest
from hypothesis import given, strategies as st

from aboard.core.cluster.node_sets import MAX_NAMES, Login, expand_logins, expand_node_set, fold_names, split_node_set
from aboard.core.text.input_text import find_host_error
from aboard.diagnoses import InputError

NAMES = st.one_of(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}", fullmatch=True),
    st.from_regex(r"(n|gpu|r1n)[0-9]{1,3}(i|-ib)?", fullmatch=True),
    st.ip_addresses().map(str),
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu01", ["gpu01"]),
        ("gpu[01-03,20]", ["gpu01", "gpu02", "gpu03", "gpu20"]),
        ("n[1-2]i", ["n1i", "n2i"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[09-11]", ["n09", "n10", "n11"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("a,b[1-2]", ["a", "b1", "b2"]),
        ("  a \t b[1, 2],, c\n", ["a", "b1", "b2", "c"]),
        ("n[3,1]", ["n3", "n1"]),
        ("fe80::[1-2]", ["fe80::1", "fe80::2"]),
    ],
)
def test_expands(text: str, names: list[str]) -> None:
    """A set stands for its names, in the order written, with the padding of each range's first number."""
    assert list(expand_node_set(text)) == names


@pytest.mark.parametrize(
    ("text", "seen", "column", "fix"),
    [
        ("gpu[16-01]", "runs backwards", 4, "write 01-16"),
        ("gpu[]", "brackets are empty", 3, "for example [01-16]"),
        ("gpu[01-16", "never closed", 3, "write gpu[01-16]"),
        ("gpu[01-", "this range has no end, and no ']'", 3, "the last number and a ']', for example gpu[01-04]"),
        ("gpu[7,98-", "this range has no end, and no ']'", 3, "for example gpu[7,98-101]"),
        ("gpu[", "never closed", 3, "numbers and a ']', for example gpu[01-04]"),
        ("gpu[01-]", "the range '01-' has no end", 4, "write its last number, for example 01-04"),
        ("a,gpu01]", "never opened", 7, "gpu[01-16]"),
        ("gpu[1-0016]", "different widths", 4, "write 0001-0016"),
        ("gpu[a-c]", "'a-c' is neither a number nor a range", 4, "[01-16,20]"),
        ("gpu[1,,2]", "a number is missing", 6, "[01-16,20]"),
        ("[::1]", "neither a number", 1, "without brackets"),
        ("b,-oProxyCommand=id", "starts with '-'", 2, "check the spelling"),
        ("x$(id)", "not a hostname", 0, "check the spelling"),
        ("host:2222", "has a port", 0, "port: 2222"),
        (
            "n1:8",
            "a name and a number",
            0,
            "for 8 slots on n1 alone, put the line `n1 slots=8` into a hostfile and use --hostfile hostfile",
        ),
        ("me@n1:8", "a name and a number", 0, "`me@n1 slots=8`"),
        ("-l@host", "starts with '-'", 0, "alice@host"),
        (f"n[1-{MAX_NAMES + 1}]", "more than 65,536 names", 2, "smaller ranges"),
        ("n[1-9999999999999999999]", "more than 18 digits", 2, "the number as in the hostname"),
        ("a[1-300]b[1-300]", "more than 65,536 names", 0, "smaller ranges"),
    ],
)
def test_shows_the_place(text: str, seen: str, column: int, fix: str) -> None:
    """A wrong set is refused with a caret under the place, and with the right way to write it."""
    with pytest.raises(InputError) as caught:
        expand_logins(text)
    (problem,) = caught.value.problems
    assert seen in problem.seen.splitlines()[0]
    assert problem.seen.splitlines()[2] == " " * (4 + column) + "^"
    assert fix in problem.fix


def test_all_wrong_members_at_once() -> None:
    """Each wrong member of a list is a problem of its own."""
    with pytest.raises(InputError) as caught:
        expand_node_set("a[], b, c[2-1]", where="--include")
    assert [problem.where for problem in caught.value.problems] == ["--include", "--include"]


def test_nothing_is_an_error() -> None:
    """A set without a name is refused."""
    with pytest.raises(InputError, match="no node was given"):
        expand_node_set(" , ")


def test_largest_set() -> None:
    """The bound itself is allowed, over all members together."""
    assert len(expand_node_set(f"n[1-{MAX_NAMES}]")) == MAX_NAMES
    with pytest.raises(InputError):
        expand_node_set(f"a n[1-{MAX_NAMES}]")


def test_users() -> None:
    """A user may stand before a set, where logins are expected and nowhere else."""
    assert expand_logins("alice@n[1-2],m") == (
        Login(name="n1", user="alice"),
        Login(name="n2", user="alice"),
        Login(name="m"),
    )
    with pytest.raises(InputError, match="a user name is not allowed here"):
        expand_node_set("alice@n1")


def test_folds() -> None:
    """Names are folded for messages as people would write them."""
    assert fold_names(["n1", "n2", "n3", "n7"]) == "n[1-3,7]"
    assert fold_names(["gpu08", "gpu09", "gpu10", "login"]) == "gpu[08-10],login"
    assert fold_names(["n9", "n10", "n010"]) == "n[9-10,010]"
    assert split_node_set("a,b[1,3]") == ["a", "b[1,3]"]


@given(st.lists(NAMES.filter(lambda name: find_host_error(name) is None), min_size=1, max_size=30))
def test_fold_is_undone_by_expand(names: list[str]) -> None:
    """Folding loses nothing: not the order, not the padding, not a repeated name."""
    assert list(expand_node_set(fold_names(names))) == names


@given(st.text() | st.text(alphabet="an019[]-,@: \n") | st.binary().map(lambda data: data.decode("latin-1")))
def test_any_text_is_safe(text: str) -> None:
    """Whatever is written, names that can be given to ssh come out, or an InputError."""
    try:
        names = [login.name for login in expand_logins(text)]
    except InputError:
        return
    assert names
    assert all(find_host_error(name) is None for name in names)
