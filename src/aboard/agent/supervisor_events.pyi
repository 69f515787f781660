# What a supervisor reports to the head: a type for each kind, as `aboard.core.run.event_kinds` has a class for each.
# mypy checks what is sent; nodes neither receive this file nor import it.

from typing import Literal, Protocol, TypedDict

from typing_extensions import NotRequired, TypeAlias

class CopiedFiles(TypedDict):
    checkpoint: str
    serial: int
    files: list[str]

CopyObstacle: TypeAlias = Literal["full", "peer", "damaged", "late"]

class CopyFailure(TypedDict):
    checkpoint: str
    obstacle: CopyObstacle
    why: str

class LastWords(TypedDict):
    stack: NotRequired[str]

class ExceptionText(TypedDict):
    type: str
    message: str
    trace: str
    error: NotRequired[str]

class Unpacking(TypedDict):
    kind: Literal["unpacking"]
    child: str

class Started(TypedDict):
    kind: Literal["started"]
    child: str
    pid: int
    standby: NotRequired[bool]

class PhaseReached(TypedDict):
    kind: Literal["phase"]
    child: str
    phase: str

class FilesSaved(CopiedFiles):
    kind: Literal["saved"]
    child: str
    marker: NotRequired[str]
    copied: NotRequired[bool]

class RankException(ExceptionText):
    kind: Literal["raised"]
    child: str

class LauncherNested(TypedDict):
    kind: Literal["nested"]
    child: str
    command: list[str]

class LauncherCaptured(TypedDict):
    kind: Literal["captured"]
    child: str
    number: int
    launcher: str
    pid: int

class LauncherWithdrawn(TypedDict):
    kind: Literal["withdrawn"]
    child: str
    number: int

class LauncherEscaped(TypedDict):
    kind: Literal["escaped"]
    child: str
    command: list[str]
    why: str

class Exited(LastWords):
    kind: Literal["exited"]
    child: str
    code: int

class StartFailed(TypedDict):
    kind: Literal["failed"]
    child: str
    why: str

class StandbyReady(TypedDict):
    kind: Literal["standby"]

EndCause: TypeAlias = Literal["head", "lease", "guard", "signal", "slurm"]

class Ending(TypedDict):
    kind: Literal["ending"]
    why: str
    cause: EndCause

class Ended(TypedDict):
    kind: Literal["ended"]
    killed: int
    stubborn: list[int]

class Listening(TypedDict):
    kind: Literal["listening"]
    port: int

class PortConflict(TypedDict):
    kind: Literal["port_taken"]
    port: int
    uid: int
    user: str
    pid: int
    name: str
    run: str
    beside: bool

AgentProcess: TypeAlias = Literal["supervisor", "guard", "bridge"]

class AgentContinued(TypedDict):
    kind: Literal["continued"]
    process: AgentProcess

class AgentKilled(TypedDict):
    kind: Literal["killed"]
    process: AgentProcess

class MissingCopy(CopyFailure):
    kind: Literal["uncopied"]

SupervisorEvent: TypeAlias = (
    Unpacking
    | Started
    | PhaseReached
    | FilesSaved
    | RankException
    | LauncherNested
    | LauncherCaptured
    | LauncherWithdrawn
    | LauncherEscaped
    | Exited
    | StartFailed
    | StandbyReady
    | Ending
    | Ended
    | Listening
    | PortConflict
    | AgentContinued
    | AgentKilled
    | MissingCopy
)

class Emit(Protocol):
    def __call__(self, event: SupervisorEvent, wall: float | None = None) -> None: ...
