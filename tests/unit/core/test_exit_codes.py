"""Which exit code a result gets, and that commands define none of their own."""

import re
from pathlib import Path

import pytest
from evidence_builders import evidence, in_collective

import aboard
from aboard.core.exit_codes import choose_exit_code, choose_run_exit_code
from aboard.core.run.end_decision import EndDecision
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.runs import death


def findings(*severities: Severity) -> list[Finding]:
    return [death.EXITED.finding(nodes=(), seen="it ended", severity=severity) for severity in severities]


@pytest.mark.parametrize(
    ("severities", "plain", "strict"),
    [
        ((), 0, 0),
        ((Severity.INFO,), 0, 0),
        ((Severity.INFO, Severity.WARN), 0, 1),
        ((Severity.WARN, Severity.BLOCK, Severity.INFO), 2, 2),
    ],
)
def test_the_worst_finding_decides(severities: tuple[Severity, ...], plain: int, strict: int) -> None:
    """Warnings count only with --strict."""
    assert choose_exit_code(findings(*severities)) == plain
    assert choose_exit_code(findings(*severities), strict=True) == strict


def test_what_was_not_tested_is_no_pass_with_strict() -> None:
    """Unknown is never a pass."""
    assert choose_exit_code([], untested=True) == 0
    assert choose_exit_code([], strict=True, untested=True) == 1


@pytest.mark.parametrize(("blocking", "code"), [(Severity.INFO, 2), (Severity.WARN, 2), (Severity.BLOCK, 0)])
def test_commands_differ_in_what_counts(blocking: Severity, code: int) -> None:
    """A verdict of `why` counts at any severity, a finding of `trust` from a warning on."""
    assert choose_exit_code(findings(Severity.WARN), blocking=blocking) == code
    assert choose_exit_code([], blocking=blocking) == 0


@pytest.mark.parametrize(("ended", "code"), [(None, 127), (0, 0), (3, 3), (-9, 137)])
def test_a_run_has_the_exit_code_of_its_first_death(ended: int | None, code: int) -> None:
    """128 + N for a rank killed by signal N, 127 for one that never started; a stop and a stall come first."""
    child = next(iter(evidence({0: in_collective()}).run.generation.children.values()))
    child.code = ended
    assert choose_run_exit_code(EndDecision(why="a rank died"), child, findings(Severity.BLOCK)) == code
    assert choose_run_exit_code(EndDecision(why="Ctrl-C", asked=True), child, ()) == 130
    assert choose_run_exit_code(EndDecision(why="stuck", stuck=True), child, ()) == 124


@pytest.mark.parametrize(("severity", "code"), [(Severity.BLOCK, 1), (Severity.WARN, 0)])
def test_a_run_without_a_death_fails_by_its_findings(severity: Severity, code: int) -> None:
    """A lost node fails a run; a warning doesn't."""
    assert choose_run_exit_code(EndDecision(why="all ranks ended"), None, findings(severity)) == code


def test_no_command_defines_an_exit_code() -> None:
    """Each has one definition."""
    root = Path(aboard.__file__).parent
    files = [path for layer in ("commands", "engine", "trainer") for path in (root / layer).rglob("*.py")]
    assert not [
        path.name
        for path in files
        if re.search(r"^_?(EXIT_\w+|INTERRUPTED|STUCK) = \d+$", path.read_text(), re.MULTILINE)
    ]
