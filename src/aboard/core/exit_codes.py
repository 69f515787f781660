"""The exit codes of all commands, and which of them a result gets."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from aboard.diagnoses import Finding, Severity

if TYPE_CHECKING:
    from aboard.core.run.end_decision import EndDecision
    from aboard.core.run.run_state import RankProcess

# With --strict, a warning; of a command that acts on several nodes, a failure on some.
EXIT_WARNED = EXIT_FAILED = 1
# Something would stop a run; of `why` and `trust`, a finding.
EXIT_BLOCKED = 2
# The command itself is wrong: a file, a key, a typo.
EXIT_ERROR = 3
# As timeout(1): the run was stuck.
EXIT_STUCK = 124
# As a shell's: a rank's program could not be started; and after Ctrl-C.
EXIT_NOT_STARTED = 127
EXIT_INTERRUPTED = 130


def choose_exit_code(
    findings: Iterable[Finding],
    *,
    blocking: Severity = Severity.BLOCK,
    strict: bool = False,
    untested: bool = False,
) -> int:
    """The exit code of a command that reports findings: 2 for one of at least `blocking`, 0 if nothing is wrong.

    `strict` makes it 1 for a warning, and for a subject that was `untested`.
    """
    worst = max((finding.severity for finding in findings), default=None)
    if worst is not None and worst >= blocking:
        return EXIT_BLOCKED
    return EXIT_WARNED if strict and (worst is Severity.WARN or untested) else 0


def choose_run_exit_code(end: "EndDecision", death: "RankProcess | None", findings: Iterable[Finding]) -> int:
    """The exit code of a run: that of its first death, with 128 + N for signal N, unless it was stopped or stuck."""
    if end.asked:
        return EXIT_INTERRUPTED
    if end.stuck:
        return EXIT_STUCK
    if death is not None:
        return EXIT_NOT_STARTED if death.code is None else convert_wait_code(death.code)
    return EXIT_FAILED if any(finding.severity is Severity.BLOCK for finding in findings) else 0


def convert_wait_code(code: int) -> int:
    """A process's exit code as a shell reports it: 128 + N for signal N, which Python gives as -N."""
    return code if code >= 0 else 128 - code
