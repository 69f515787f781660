"""Every error that a user can meet.

AboardError             code, what was seen, what to type
├── InputError          a file or an argument can't be used; lists every problem at once
├── SandboxError        the practice cluster can't do what was asked
└── WireError           a node can't be reached, or stopped making sense
    ├── Unreachable     no agent answered: `reason` says which of the ways it was
    ├── ProtocolError   the far end broke the frame protocol
    └── AskError        the agent answered that it couldn't do what it was asked
"""

from collections.abc import Iterable

from aboard.core.lazy import dataclass
from aboard.core.reason import Reason


class AboardError(Exception):
    """An error with a name: `code` is stable, `seen` is what happened, `fix` is what to type."""

    def __init__(self, code: str, seen: str, *, fix: str) -> None:
        super().__init__(f"{seen} [{code}]")
        self.code = code
        self.seen = seen
        self.fix = fix


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong in what the user gave us, and where it stands."""

    where: str
    seen: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.seen}"


class InputError(AboardError):
    """What the user gave can't be used; `problems` holds all of it, not the first only."""

    def __init__(self, code: str, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(code, "\n".join(map(str, self.problems)), fix=self.problems[0].fix)


class SandboxError(AboardError):
    """The practice cluster can't do what was asked."""


class WireError(AboardError):
    """A node can't be reached, or stopped making sense: `reason` says which, garbage where nothing more is known."""

    reason = Reason.GARBAGE
    detail = ""


class Unreachable(WireError):
    """No agent answered on a node; `reason` tells the ways apart."""

    def __init__(self, reason: Reason, seen: str, *, detail: str = "") -> None:
        super().__init__(f"reach-{reason.value}", seen, fix="aboard check")
        self.reason = reason
        self.detail = detail


class ProtocolError(WireError):
    """The far end sent something that is no frame of ours."""

    def __init__(self, seen: str) -> None:
        super().__init__("wire-protocol", seen, fix="aboard check")


class AskError(WireError):
    """The agent could not do what it was asked."""

    def __init__(self, seen: str) -> None:
        super().__init__("agent-ask", seen, fix="aboard check")
