"""What the type checker refuses, since no test would meet every place in which it could be written."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFUSED = """
from aboard.diagnoses import (AboardError, Confidence, Diagnosis, Finding, RunFailure, Severity, TrainerError)
from aboard.diagnoses.diagnosis import run_warning
from aboard.diagnoses.failure_class import FailureClass, RunFix
from aboard.doctor.hang import diagnoses as hang
from aboard.diagnoses.untrusted import Untrusted

ODD = Diagnosis(code="odd", title="", explanation="")
LOST = RunFailure(code="lost", title="", explanation="")  # refused: nobody says how a run recovers from it
SLOW = run_warning(code="slow", title="", explanation="")  # refused: nor from this
MIXED = RunFailure(
    code="mixed",
    title="",
    explanation="",
    restart=FailureClass.UNKNOWN,
    classified_fixes={
        "again": RunFix(FailureClass.TRANSIENT, "true"),
        "repair": "false",  # refused: a fix whose class nobody listed
    },
)


def blamed() -> None:
    ODD.finding(nodes=(), seen="").as_cause(Confidence.LIKELY)  # refused: the cause of a run without a class
    MIXED.finding(nodes=(), seen="").as_cause(Confidence.LIKELY)
    TrainerError(ODD, "seen")  # refused: the same of our trainer


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
def test_text_from_outside_and_undeclared_or_unclassified_failures_are_type_errors(tmp_path: Path) -> None:
    """Mypy refuses exactly the lines that say so: who forgets visible(), the catalogue or a class learns it at once."""
    module = tmp_path / "refused.py"
    module.write_text(REFUSED, "utf-8")
    argv = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-error-summary", str(module)]
    found = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300).stdout
    lines = {int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line}
    wanted = {number for number, line in enumerate(REFUSED.splitlines(), 1) if "# refused" in line}
    assert lines == wanted, found
