"""Every error that a user can encounter.

AboardError                 a diagnosis, what was observed, and the fix
├── InputError              a file or an argument is invalid; lists every problem at once
├── TrainerError            ends a rank of our trainer; has the class by which the run is recovered
├── SandboxError            the practice cluster can't execute a request
└── TransportError          a node can't be reached, or sends invalid data
    ├── Unreachable         no agent replied: `reason` says why
    ├── ProtocolError       the other end broke the frame protocol
    └── AgentRequestError   the agent reported that it could not execute a request
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Self

from aboard.diagnoses.diagnosis import Diagnosis, RunFailure
from aboard.diagnoses.fixes import NO_FIX, Fix, Value
from aboard.diagnoses.nodes import agent_protocol, reach
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import LONGEST_WORD, encode_text, escape_lines, escape_text
from aboard.lazy_dataclass import dataclass


class AboardError(Exception):
    """An error with a diagnosis: `code` is stable, `seen` is what happened, `fix` is the command to run.

    `AboardError(checkpoint.DISK_FULL, "rank 3 can't write …", "full", folder=folder)` gives the diagnosis, what was
    observed, and the variant of the fix with its values, if there is one.
    """

    def __init__(
        self, diagnosis: Diagnosis, seen: str, variant: str | None = None, /, *, fix: Fix | None = None, **values: Value
    ) -> None:
        self.diagnosis = diagnosis
        # What was observed often quotes a path, a name or a file of somebody else.
        self.seen = escape_lines(seen)
        if fix is None:
            has_fix = variant is not None or values or "" in diagnosis.templates
            fix = diagnosis.fix(variant or "", **values) if has_fix else NO_FIX
        self.fix = fix
        super().__init__(f"{self.seen} [{self.code}]")

    @property
    def code(self) -> str:
        return self.diagnosis.code

    @property
    def packed(self) -> str:
        """The error as JSON, for `catalogue.read_error` in another process."""
        return json.dumps(pack_error(self))


def pack_error(error: AboardError) -> dict[str, Any]:
    """The error as plain data, for `catalogue.unpack_error` in another process."""
    values = {name: _encode_value(value) for name, value in error.fix.values.items()}
    return {"code": error.code, "seen": error.seen, "variant": error.fix.variant, "values": values}


def _encode_value(value: object) -> str | int | float | list[str]:
    if isinstance(value, (str, int, float)):
        return value
    return list(map(encode_text, value)) if isinstance(value, (list, tuple)) else encode_text(value)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem in the user's input, and where it is."""

    where: str
    seen: str
    fix: Fix

    def __str__(self) -> str:
        return f"{self.where}: {self.seen}"


class InputError(AboardError):
    """Invalid input; `problems` lists all of them, not only the first."""

    def __init__(self, diagnosis: Diagnosis, problems: Iterable[Problem]) -> None:
        self.problems = tuple(
            replace(each, where=escape_text(each.where, LONGEST_WORD), seen=escape_lines(each.seen))
            for each in problems
        )
        super().__init__(diagnosis, "\n".join(map(str, self.problems)), fix=self.problems[0].fix)

    @classmethod
    def of(cls, diagnosis: Diagnosis, where: str, seen: str, variant: str = "", /, **values: Value) -> Self:
        """The error of a single problem, with the variant of the diagnosis' fix and its values."""
        return cls(diagnosis, [Problem(where=where, seen=seen, fix=diagnosis.fix(variant, **values))])


class TrainerError(AboardError):
    """Ends a rank of our own trainer, so its diagnosis says by which class the run is recovered."""

    def __init__(
        self,
        diagnosis: RunFailure,
        seen: str,
        variant: str | None = None,
        /,
        *,
        fix: Fix | None = None,
        **values: Value,
    ) -> None:
        super().__init__(diagnosis, seen, variant, fix=fix, **values)


class SandboxError(AboardError):
    """The practice cluster can't execute a request."""


class TransportError(AboardError):
    """A node can't be reached or sends invalid data; `reason` is GARBAGE where nothing more is known."""

    reason = UnreachableReason.GARBAGE
    detail = ""


class Unreachable(TransportError):
    """No agent replied on a node; `reason` says why."""

    def __init__(self, reason: UnreachableReason, seen: str, *, detail: str = "") -> None:
        super().__init__(reach.UNREACHED[reason], seen, fix=Fix("aboard check"))
        self.reason = reason
        self.detail = detail


class ProtocolError(TransportError):
    """The other end sent an invalid frame."""

    def __init__(self, seen: str) -> None:
        super().__init__(agent_protocol.WIRE_PROTOCOL, seen)


class AgentRequestError(TransportError):
    """The agent could not execute a request."""

    def __init__(self, seen: str) -> None:
        super().__init__(agent_protocol.AGENT_ASK, seen)
