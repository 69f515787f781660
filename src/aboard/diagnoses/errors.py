"""Every error that a user can meet.

AboardError             a diagnosis, what was seen, what to type
├── InputError          a file or an argument can't be used; lists every problem at once
├── SandboxError        the practice cluster can't do what was asked
└── WireError           a node can't be reached, or stopped making sense
    ├── Unreachable     no agent answered: `reason` says which of the ways it was
    ├── ProtocolError   the far end broke the frame protocol
    └── AskError        the agent answered that it couldn't do what it was asked
"""

import json
from collections.abc import Iterable
from typing import Any

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import NO_FIX, Fix, Value
from aboard.diagnoses.nodes import agent_protocol, reach
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import encode_text
from aboard.lazy_dataclass import dataclass


class AboardError(Exception):
    """An error with a name: `code` is stable, `seen` is what happened, `fix` is what to type.

    `AboardError(checkpoint.DISK_FULL, "rank 3 can't write …", "full", folder=folder)`: the diagnosis, what was seen,
    and which of its fixes with which values; without a fix for it, none.
    """

    def __init__(
        self, diagnosis: Diagnosis, seen: str, variant: str | None = None, /, *, fix: Fix | None = None, **values: Value
    ) -> None:
        self.diagnosis = diagnosis
        self.seen = seen
        if fix is None:
            has_fix = variant is not None or values or "" in diagnosis.templates
            fix = diagnosis.fix(variant or "", **values) if has_fix else NO_FIX
        self.fix = fix
        super().__init__(f"{seen} [{self.code}]")

    @property
    def code(self) -> str:
        return self.diagnosis.code

    @property
    def packed(self) -> str:
        """The error for another process, which reads it with `catalogue.read_error`."""
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
    """One thing that is wrong in what the user gave us, and where it stands."""

    where: str
    seen: str
    fix: Fix

    def __str__(self) -> str:
        return f"{self.where}: {self.seen}"


class InputError(AboardError):
    """What the user gave can't be used; `problems` holds all of it, not the first only."""

    def __init__(self, diagnosis: Diagnosis, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(diagnosis, "\n".join(map(str, self.problems)), fix=self.problems[0].fix)


class SandboxError(AboardError):
    """The practice cluster can't do what was asked."""


class TransportError(AboardError):
    """A node can't be reached, or stopped making sense: `reason` says which, garbage where nothing more is known."""

    reason = UnreachableReason.GARBAGE
    detail = ""


class Unreachable(TransportError):
    """No agent answered on a node; `reason` tells the ways apart."""

    def __init__(self, reason: UnreachableReason, seen: str, *, detail: str = "") -> None:
        super().__init__(reach.UNREACHED[reason], seen, fix=Fix("aboard check"))
        self.reason = reason
        self.detail = detail


class ProtocolError(TransportError):
    """The far end sent something that is no frame of ours."""

    def __init__(self, seen: str) -> None:
        super().__init__(agent_protocol.WIRE_PROTOCOL, seen)


class AgentRequestError(TransportError):
    """The agent could not do what it was asked."""

    def __init__(self, seen: str) -> None:
        super().__init__(agent_protocol.AGENT_ASK, seen)
