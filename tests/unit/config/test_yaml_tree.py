"""YAML with places: what it reads, and what it refuses."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aboard.config.yaml_tree import Leaf, Table, convert_to_builtins, parse_scalar, parse_tree
from aboard.diagnoses import InputError


def value(text: str) -> Any:
    return convert_to_builtins(parse_tree(f"k: {text}\n", file="f"))["k"]


def problems(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_tree(text, file="f.yaml")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2e-5", 2e-5),
        ("1e6", 1e6),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("8", 8),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("FALSE", False),
        ("", None),
        ("~", None),
        ("null", None),
        ("on", "on"),
        ("No", "No"),
        ("yes", "yes"),
        ("12:30:00", "12:30:00"),
        ("2026-01-02", "2026-01-02"),
        ("1_000", "1_000"),
        ("'8'", "8"),
        ("!!str 8", "8"),
        ("[1, a]", [1, "a"]),
    ],
)
def test_yaml_1_2(text: str, expected: object) -> None:
    """Scalars are what YAML 1.2 says: exponents are numbers, on/off/yes/no and dates are text."""
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_scalars_of_the_command_line() -> None:
    """A value after --set follows the same rules."""
    assert [parse_scalar(text, where="--set").value for text in ("2e-5", "8", "true", "n[1-4]", "")] == [
        2e-5,
        8,
        True,
        "n[1-4]",
        None,
    ]


def test_verbatim() -> None:
    """Under a verbatim key scalars stay as they were written, at any depth."""
    tree = parse_tree("env: {A: 010, B: 1e-5, C: true, D: '', E: ~}\nn: 010\n", file="f")
    assert convert_to_builtins(tree, verbatim=frozenset({"env"})) == {
        "env": {"A": "010", "B": "1e-5", "C": "true", "D": "", "E": None},
        "n": 10,
    }


def test_places() -> None:
    """Every key and value knows its line and column, and the directory of its file."""
    tree = parse_tree("a:\n  b: 1\n", file="dir/f.yaml", base="dir")
    inner = tree.values["a"]
    assert tree.keys["a"] == "dir/f.yaml:1:1"
    assert inner.where == "dir/f.yaml:2:3"
    assert isinstance(inner, Table)
    assert inner.values["b"] == Leaf(value=1, text="1", where="dir/f.yaml:2:6", base="dir")


def test_empty_file() -> None:
    """A file with nothing but comments is an empty mapping."""
    assert convert_to_builtins(parse_tree("# nothing\n", file="f")) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "a: 1\nb:\n  c: 1\n  c: 2\na: 3\n",
            ["4:3: the key 'c' is already on line 3", "5:1: the key 'a' is already on line 1"],
        ),
        ("- a\n", ["1:1: the file is not a mapping of keys to values"]),
        ("a: !!python/object:os.system x\n", ["1:4: the tag '!!python/object:os.system' is not allowed"]),
        ("a: !env X\n", ["1:4: the tag '!env' is not allowed"]),
        ("[a]: 1\n", ["1:1: a key must be plain text, not a list or a mapping"]),
        ("a: !!int x\n", ["1:4: 'x' is not a valid int"]),
        (f"a: {'9' * 5000}\n", [f"1:4: '{'9' * 19}…' is not a valid int"]),
        ("a: 1\n---\nb: 2\n", ["2:1: not valid YAML: but found another document"]),
    ],
)
def test_refused(text: str, expected: list[str]) -> None:
    """Keys that come twice, tags, odd keys and impossible numbers are each named at their place."""
    assert [found.splitlines()[0] for found in problems(text)] == [f"f.yaml:{line}" for line in expected]


@pytest.mark.parametrize(
    ("text", "where", "fix"),
    [
        ("cluster:\n  nodes: [gpu[01-16]]\n", "f.yaml:2:14", 'nodes: ["gpu[01-16]"]'),
        ("a:\n\tb: 1\n", "f.yaml:2:1", "not tabs"),
        ("a: b: c\n", "f.yaml:1:5", "put quotes around"),
        ("a: 1\nb: \x07\n", "f.yaml:2", "put quotes around"),
        ('a: "\\UFFFFFFFF"\n', "f.yaml", "escapes"),
    ],
)
def test_syntax(text: str, where: str, fix: str) -> None:
    """What is no YAML is named with its line, and with the likely way out."""
    with pytest.raises(InputError) as caught:
        parse_tree(text, file="f.yaml")
    (problem,) = caught.value.problems
    assert problem.where == where
    assert fix in problem.fix


def test_billion_laughs() -> None:
    """Aliases that grow without bound are stopped, not expanded."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "more than 100,000 values" in problems("\n".join(lines))[0]


@pytest.mark.parametrize(
    "text",
    ["a: " + "[" * 500, "a: &a [*a]\n", "a: " + "{b: " * 500, "- " * 2000],
    ids=["lists", "an alias to itself", "mappings", "dashes"],
)
def test_depth(text: str) -> None:
    """Nesting without end is an error, and no stack overflow."""
    assert "levels of nesting" in problems(text)[0]


@given(
    st.text() | st.text(alphabet="ab01:-[]{}&*!|>'\"%#,\\ \n\t") | st.binary().map(lambda data: data.decode("latin-1"))
)
def test_any_text(text: str) -> None:
    """No text ends the loader with anything but a mapping or an InputError."""
    with suppress(InputError):
        assert isinstance(convert_to_builtins(parse_tree(text, file="f")), dict)
