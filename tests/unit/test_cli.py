"""The command line as a person meets it: help, typing mistakes, exit codes."""

import subprocess
import sys
from pathlib import Path


def aboard(*argv: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "aboard", *argv], capture_output=True, text=True, check=False, cwd=cwd)


def test_help_lists_the_verbs_in_the_order_of_the_story() -> None:
    """`aboard --help` tells the way, not the alphabet."""
    said = aboard("--help").stdout
    assert said.index("  init ") < said.index("  check ") < said.index("  sandbox ")


def test_a_mistyped_command() -> None:
    """A typing mistake gets the nearest command and an exit code of its own."""
    ran = aboard("chekc")
    assert ran.returncode == 3
    assert "did you mean 'check'?" in ran.stderr


def test_a_mistyped_subject() -> None:
    """So does one in --only, before any node is dialled."""
    ran = aboard("check", "--only", "reech", "localhost")
    assert ran.returncode == 3
    assert "did you mean 'reach'?" in ran.stderr


def test_a_broken_file_shows_every_problem(tmp_path: Path) -> None:
    """All errors of a file at once, each with its place and what to write."""
    (tmp_path / "aboard.yaml").write_text("cluster:\n  nodes: [n1]\n  slot: 8\n  prot: 22\n")
    ran = aboard("check", cwd=tmp_path)
    assert ran.returncode == 3
    assert "aboard.yaml:3:3" in ran.stderr
    assert "did you mean 'slots'?" in ran.stderr
    assert "aboard.yaml:4:3" in ran.stderr
    assert "Traceback" not in ran.stderr
