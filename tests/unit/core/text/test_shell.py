"""Quoting, proven by the shells themselves."""

import os
import shutil
import subprocess

import pytest
from hypothesis import example, given, strategies as st

from aboard.core.text.shell_quoting import join_argv
from aboard.diagnoses import InputError

SHELLS = [shell for shell in ("sh", "bash", "zsh", "csh", "tcsh", "fish") if shutil.which(shell)]
WORDS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20) | st.text(
    alphabet="'\\!\"$`\n\t #~*?[]{}()<>|&;^%=@-a\r", max_size=12
)


def said(shell: str, words: list[str]) -> list[str]:
    """What a real shell gives to a program for each of the words."""
    command = join_argv(["env", "printf", "%s\\0", *words])
    done = subprocess.run([shell, "-c", command], capture_output=True, timeout=60, check=False, env=_ENV)
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


_ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}


@pytest.mark.ci
@pytest.mark.parametrize("shell", SHELLS)
@given(words=st.lists(WORDS, min_size=1, max_size=40))
@example(words=[chr(code) for code in range(1, 128) if code != 10])
@example(words=[f"a{chr(code)}b" for code in range(1, 128) if code != 10])
@example(words=[chr(code) * 2 for code in range(32, 127)])
@example(words=["a\nb", "\n", "\n\n", "end\n"])
@example(words=["$(id)", "`id`", "!!", "it's", "a\\", "\\'", "'\\''", "~", "=ls", "", "é", "漢", "\udcff"])
def test_every_shell_reads_it_back(shell: str, words: list[str]) -> None:
    """Whichever login shell a node has, the program gets exactly the words that were given."""
    assert said(shell, words) == words


def test_plain_words_stay_readable() -> None:
    """A command that needs no quotes has none."""
    assert join_argv(["python3", "-u", "/opt/a.py"]) == "python3 -u /opt/a.py"
    assert join_argv(["echo", "a b", ""]) == "echo 'a b' ''"
    assert join_argv(["echo", "it's!"]) == r"echo 'it'\''s'\!"


def test_nul_is_refused() -> None:
    """No argv can hold a NUL, so it is an error here and not a cut word there."""
    with pytest.raises(InputError, match="NUL"):
        join_argv(["echo", "a\0b"])
