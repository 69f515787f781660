"""A symptom: a message that programs print, what it means, and whether it is a cause or only an echo of one."""

import re
from dataclasses import field
from enum import Enum

from aboard.diagnoses import Command, Severity
from aboard.lazy import dataclass


class Role(Enum):
    """What a message is to a failure.

    CAUSE is where it began. WAIT is a time-out: it names who waited, and anything that failed before explains it. END
    says that a process ended, not why. ECHO is a rank that lost a peer. HINT is harmless alone, and tells a cause that
    has several readings apart. ODD is worth a line although the run goes on.
    """

    CAUSE = "cause"
    WAIT = "wait"
    END = "end"
    ECHO = "echo"
    HINT = "hint"
    ODD = "odd"


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """Groups of the pattern that have a meaning: node, rank, local, pid, peer (an address or a name), at.

    `why` and `fix` may hold any group of the pattern in braces, and {node} and {rank} of whoever said it. `weight`
    decides between causes that were seen together: 3 names the thing itself, 2 what failed, 1 only that something did.
    `late` is told by somebody who keeps the books, after the fact. `refines` names codes that a hint tells apart.
    """

    code: str
    pattern: re.Pattern[str]
    role: Role
    why: str
    fix: Command
    weight: int = 2
    late: bool = False
    severity: Severity = Severity.BLOCK
    refines: tuple[str, ...] = field(default=())


def cause(code: str, pattern: str, why: str, *fix: str, weight: int = 2, late: bool = False) -> Symptom:
    """Where a failure began."""
    return _symptom(code, pattern, Role.CAUSE, why, fix, weight=weight, late=late)


def wait(code: str, pattern: str, why: str, *fix: str, weight: int = 2) -> Symptom:
    """A time-out, which anything that failed before explains."""
    return _symptom(code, pattern, Role.WAIT, why, fix, weight=weight)


def end(code: str, pattern: str, why: str, *fix: str, weight: int = 1) -> Symptom:
    """A process ended; told by its launcher, after the fact."""
    return _symptom(code, pattern, Role.END, why, fix, weight=weight, late=True)


def echo(pattern: str) -> Symptom:
    """A rank cries out because a peer is gone."""
    return _symptom("run-followed", pattern, Role.ECHO, "It lost a peer that had died before.", (), weight=0)


def hint(code: str, pattern: str, why: str, *fix: str, refines: tuple[str, ...]) -> Symptom:
    """Harmless alone; decides what a cause of several readings was."""
    made = _symptom(code, pattern, Role.HINT, why, fix, weight=3)
    return Symptom(**{**made.__dict__, "refines": refines})


def odd(code: str, pattern: str, why: str, *fix: str) -> Symptom:
    """The run goes on, slower or otherwise than meant."""
    made = _symptom(code, pattern, Role.ODD, why, fix, weight=1)
    return Symptom(**{**made.__dict__, "severity": Severity.WARN})


def info(code: str, pattern: str, why: str, *fix: str) -> Symptom:
    """Worth a line, since it is mostly meant so."""
    made = _symptom(code, pattern, Role.ODD, why, fix, weight=1)
    return Symptom(**{**made.__dict__, "severity": Severity.INFO})


def _symptom(
    code: str, pattern: str, role: Role, why: str, fix: tuple[str, ...], *, weight: int, late: bool = False
) -> Symptom:
    return Symptom(
        code=code,
        pattern=re.compile(pattern),
        role=role,
        why=why,
        fix=Command("\n".join(fix)),
        weight=weight,
        late=late,
    )
