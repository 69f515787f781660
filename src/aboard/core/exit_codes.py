"""The exit codes of all commands, and which of them a result gets."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from aboard.diagnoses import Finding, Severity

if TYPE_CHECKING:
    from aboard.core.run.end_decision import EndDecision
    from aboard.core.run.run_state import RankProcess

EXIT_WARNED = EXIT_FAILED = 1
EXIT_BLOCKED = 2
EXIT_ERROR = 3
# As timeout(1).
EXIT_STUCK = 124
EXIT_HOST_OFF = 125
# As a shell's.
EXIT_NOT_STARTED = 127
EXIT_INTERRUPTED = 130

# The table of docs/scripting.md; `launch`, `train` and `sandbox exec` also end with codes of the user's programs.
EXIT_CODES = {
    0: "nothing wrong was found, or the command has done its work",
    EXIT_FAILED: "`check`, `data` with `--strict`: warnings, or subjects that were not tested; `sync`: some nodes"
    " failed; `launch`, `train`: the run failed, although no rank did; `why --log`: trouble that Aboard doesn't"
    " recognize",
    EXIT_BLOCKED: "`check`, `data`, `launch`, `train`: something would stop the run; `trust`: some nodes are not ready;"
    " `why` with `--log`, `--bundle`, `--nodes` or `--pid`: a verdict that is more than information",
    EXIT_ERROR: "the command can't be carried out: a typing mistake, a file, a setting; stderr says why",
    EXIT_STUCK: "`launch`, `train`: the run made no progress and was terminated, as `on_stall` says",
    EXIT_HOST_OFF: "`sandbox exec`: the host is off",
    EXIT_NOT_STARTED: "`launch`, `train`: a rank's program could not be started",
    EXIT_INTERRUPTED: "Ctrl-C; `launch`, `train`: the run was stopped",
}


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
