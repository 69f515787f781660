"""`.deepspeed_env` files."""

import pytest
from hypothesis import given, strategies as st

from aboard.core.plan.deepspeed_env_file import parse_env_file
from aboard.core.text.input_text import find_env_name_error
from aboard.diagnoses import InputError


def test_reads() -> None:
    """Blank lines, comments, export, equals signs in values, quotes and CRLF are all fine."""
    text = '# NCCL\n\nNCCL_DEBUG=INFO\r\nexport OPTS=a=b=c\n  X = 1 \nEMPTY=\nQ="a b"\nS=\'c\'\nexport=1\nM="a" "b"\n'
    assert parse_env_file(text) == {
        "NCCL_DEBUG": "INFO",
        "OPTS": "a=b=c",
        "X": "1",
        "EMPTY": "",
        "Q": "a b",
        "S": "c",
        "export": "1",
        "M": '"a" "b"',
    }


def test_empty_file() -> None:
    """A file without variables is no error."""
    assert parse_env_file("\n# nothing\n") == {}


def test_last_one_wins() -> None:
    """A name given twice has its last value."""
    assert parse_env_file("A=1\nA=2\n") == {"A": "2"}


def test_wrong_lines() -> None:
    """Every wrong line is named with its number."""
    with pytest.raises(InputError) as caught:
        parse_env_file("A=1\nNCCL_DEBUG INFO\n1B=2\nC=\0\n", where="env")
    assert [problem.where for problem in caught.value.problems] == ["env:2", "env:3", "env:4"]
    assert "no '='" in caught.value.problems[0].seen
    assert "NAME=value" in caught.value.problems[0].fix


def test_no_secret_in_the_message() -> None:
    """A wrong line may be a token, and isn't repeated."""
    with pytest.raises(InputError) as caught:
        parse_env_file("hf_0123456789abcdef\n")
    assert "0123456789" not in str(caught.value)


@given(st.text() | st.text(alphabet="AB=# \n\r\"'\0"))
def test_any_text(text: str) -> None:
    """No text ends the parser with anything but variables that a process can be given, or an InputError."""
    try:
        env = parse_env_file(text)
    except InputError:
        return
    assert all(find_env_name_error(name) is None and "\0" not in value for name, value in env.items())
