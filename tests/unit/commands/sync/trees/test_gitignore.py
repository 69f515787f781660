"""Patterns of .gitignore files, compared with git itself where it is installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aboard.commands.sync.trees.source_tree import scan_code
from aboard.core.text.gitignore import IgnoreRules
from aboard.diagnoses import AboardError

PATTERNS = {
    ".gitignore": "# comment\n*.pyc\n/build\n!keep.pyc\nlogs/\n**/cache/\nout/**\n!out/keep/\ndoc/*.txt\na/**/z\n"
    "\\#hash\n\\!bang\nspace\\ \ntrailing   \n[ab]x\n[!ab]y\n[[:digit:]]z\nq?\nf**o\n[unclosed\nback\\\n*.e[x-z]\r\n"
    "foo/bar\n\u00fcml\u00e4ut?\n",
    "sub/.gitignore": "!*.pyc\n/only\nlocal.*\n!local.keep\n",
    "sub/deep/.gitignore": "*\n!.gitignore\n!*.keep\n",
}
FILES = [
    "a.pyc", "keep.pyc", "build/x", "sub/build/x", "logs/x", "logs.txt", "sub/logs/x", "p/q/cache/x", "cache/y",
    "out/x", "out/keep/x", "doc/a.txt", "doc/sub/a.txt", "a/z", "a/b/z", "a/b/c/z", "b/z", "#hash", "!bang", "space ",
    "trailing", "ax", "bx", "cx", "ay", "cy", "1z", "z", "q1", "q", "qq/x", "fo", "fooo", "f/o", "[unclosed", "back\\",
    "a.ex", "a.ew", "foo/bar", "sub/foo/bar", "sub/a.pyc", "sub/only", "sub/x/only", "sub/local.x", "sub/local.keep",
    "sub/deep/x", "sub/deep/y.keep", "sub/deep/z/y.keep", "\u00fcml\u00e4ut1", "\u00fcml\u00e4ut\u00e4", "new\nline",
]  # fmt: skip


def make_repository(top: Path) -> None:
    for name in FILES:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (top / os.fsdecode(b"bad\xff.pyc")).write_text("x")
    for name, text in PATTERNS.items():
        (top / name).write_text(text)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge")
@pytest.mark.parametrize("root", ["", "sub", "sub/x"])
def test_the_files_are_those_that_git_would_add(tmp_path: Path, root: str) -> None:
    """The same set of files as git's, from the top of the repository and from directories below it."""
    make_repository(tmp_path)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, env=environment, check=True)
    command = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=tmp_path / root, env=environment, check=True, stdout=subprocess.PIPE).stdout
    expected = {os.fsdecode(name) for name in listed.split(b"\0") if name}
    assert set(scan_code(tmp_path / root, "~/x").files) == expected


def test_a_directory_that_was_named_is_sent_though_ignored(tmp_path: Path) -> None:
    """Rules above it that exclude the directory, or everything in it, don't apply; its own rules do."""
    (tmp_path / ".git").mkdir()
    for pattern in ("data/", "data/*", "*"):
        (tmp_path / ".gitignore").write_text(pattern)
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data/a").write_text("a")
        (tmp_path / "data/b.log").write_text("b")
        (tmp_path / "data/.gitignore").write_text("*.log")
        assert set(scan_code(tmp_path / "data", "~/x", explicit=True).files) == {"a", ".gitignore"}
        assert "data/a" not in scan_code(tmp_path, "~/x").files


def test_a_pattern_without_an_end_matches_nothing() -> None:
    """An unclosed bracket or a last backslash is no error, and ignores no file."""
    rules = IgnoreRules("[ab\nx\\\n[[:nonsense:]]\n[z-a]\n")
    for name in ("a", "[ab", "x", "x\\", "n", "z"):
        assert rules.match(name, name, is_directory=False) is None


@pytest.mark.parametrize("pattern", ["*a*a*a*a*a*a*a*ab", "**/a/**/a/**/a/**/a/**/a/**/b", "**/*a*a*a*a*b/**/*a*a*c"])
def test_many_stars_take_linear_time(pattern: str) -> None:
    """Backtracking over all stars would take minutes for one name."""
    rules, deep = IgnoreRules(pattern), "/".join(["a"] * 1000)
    assert rules.match("a" * 4000, "a" * 4000, is_directory=False) is None
    assert rules.match(deep, "a", is_directory=False) is None


def test_a_gitignore_that_leads_elsewhere_is_not_read(tmp_path: Path) -> None:
    """A link to an endless device or an unused pipe would block the scan; git follows no link there either."""
    (tmp_path / "device").mkdir()
    (tmp_path / "device/.gitignore").symlink_to("/dev/zero")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe/.gitignore")
    (tmp_path / "a").write_text("a")
    assert set(scan_code(tmp_path, "~/x").files) == {"a"}


def test_a_gitignore_that_is_too_long_is_refused(tmp_path: Path) -> None:
    """Sending what it names would be worse than sending nothing."""
    (tmp_path / ".gitignore").write_text("a*\n" * 30_000)
    with pytest.raises(AboardError, match="has more than 64"):
        scan_code(tmp_path, "~/x")
