"""What the type checker refuses, since no test would meet every place in which it could be written."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFUSED = """
from aboard.diagnoses import (AboardError, Finding, Severity)
from aboard.doctor.hang import diagnoses as hang
from aboard.diagnoses.untrusted import Untrusted


def undeclared() -> None:
    Finding(code="made-up", severity=Severity.BLOCK, nodes=(), seen="", why="", fix="")  # refused
    AboardError("made-up", "seen", fix="sudo reboot")  # refused: an error of no diagnosis
    hang.LOCK.finding(nodes=(), seen="", why="", fix="sudo reboot")  # refused: a fix that no template made


def shown(name: Untrusted, names: tuple[Untrusted, ...], known: Untrusted | None) -> list[str]:
    hang.LOCK.finding(nodes=(), seen=name, why="")  # refused: seen by a screen as it came
    return [
        f"the process {name}",  # refused: formatted
        f"{known}",  # refused: formatted, if there is one
        f"{names}",  # refused: formatted, in a tuple
        str(name),  # refused: made a string
        "%s" % name.raw(),
        "the process {}".format(name),  # refused: formatted
        ", ".join(names),  # refused: joined
        "the process " + name,  # refused: added
        f"the process {name.visible()}",
    ]
"""


@pytest.mark.ci
def test_text_from_outside_and_undeclared_failures_are_type_errors(tmp_path: Path) -> None:
    """Mypy refuses exactly the lines that say so: whoever forgets visible() or the catalogue learns it at once."""
    module = tmp_path / "refused.py"
    module.write_text(REFUSED, "utf-8")
    argv = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-error-summary", str(module)]
    found = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300).stdout
    lines = {int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line}
    wanted = {number for number, line in enumerate(REFUSED.splitlines(), 1) if "# refused" in line}
    assert lines == wanted, found
