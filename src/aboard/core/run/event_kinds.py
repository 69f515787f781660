"""The kinds of events: what supervisors report of processes and nodes, and what the conductor itself records."""

from typing import Annotated, ClassVar, Literal, dataclass_transform, get_args

from aboard.core.decoding import CustomDecoder, Matching, MaxLength, Signed, Word
from aboard.core.run.rank_phases import BEACON_PHASES
from aboard.core.run.recovery.recovery_policy import Failure, Recovery
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass

# Aboard's own processes on a node.
AgentProcess = Literal["supervisor", "guard", "bridge"]
AGENT_PROCESSES: tuple[str, ...] = get_args(AgentProcess)
# Why a supervisor ends its ranks: the head requested it, the lease expired, its guard was killed, it received a signal,
# or Slurm ended the step.
EndCause = Literal["head", "lease", "guard", "signal", "slurm"]
# Why parts of a checkpoint are not copied to a node: its disk is full, the other node can't be reached or has nothing,
# what came is not what was saved, or the run has ended.
CopyObstacle = Literal["full", "peer", "damaged", "late"]
COPY_OBSTACLES: tuple[CopyObstacle, ...] = get_args(CopyObstacle)
# Above any number of processes that a node starts for one run.
MOST_CHILDREN = 4096


@dataclass(frozen=True)
class OmitDefault:
    """Marks a field that is not written while it has its default."""


Name = Annotated[Untrusted, MaxLength(200)]
Text = Annotated[Untrusted, MaxLength(2000)]
LongText = Annotated[Untrusted, MaxLength(8000)]
Lines = Annotated[Untrusted, MaxLength(20_000)]
Words = Annotated[tuple[Annotated[Untrusted, MaxLength(300)], ...], MaxLength(65)]
Pids = Annotated[tuple[int, ...], MaxLength(MOST_CHILDREN)]
Nodes = Annotated[tuple[str, ...], MaxLength(16_384)]
# The record decodes them: only its own fixes are trusted.
Findings = Annotated[tuple[Finding, ...], CustomDecoder(tuple)]


@dataclass_transform(kw_only_default=True, frozen_default=True)
class EventKind:
    """What happened: a frozen dataclass for each kind. A field without a default is required, and None isn't written.

    Text is untrusted, also that of the conductor: it may come from somebody else's record.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "") -> None:
        if kind:
            cls.kind = kind
            dataclass(frozen=True, kw_only=True)(cls)


class ChildReport(EventKind):
    """What a supervisor reports of one of the processes that it starts."""


class NodeReport(EventKind):
    """What a supervisor reports of its node."""


class ConnectionChange(EventKind):
    """What the conductor notices of a node or a rank."""


class RunChange(EventKind):
    """A turn of the run, which views and messages may tell of."""


class Bookkeeping(EventKind):
    """What only the record needs."""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Has the reason, in words."""

    why: Text = NO_TEXT


class Unpacking(ChildReport, kind="unpacking"):
    """A rank waits until the image of its container is unpacked."""


class Started(ChildReport, kind="started"):
    """A process has started; `standby` if it had done a rank's imports before."""

    pid: int = 0
    standby: Annotated[bool, OmitDefault()] = False


class PhaseReached(ChildReport, kind="phase"):
    """A rank has reached this phase of its start."""

    phase: Annotated[str, Matching("|".join(BEACON_PHASES))]


class FilesSaved(ChildReport, kind="saved"):
    """Files of a checkpoint are on this node, because a rank saved them, resumed from them, or they were `copied`.

    `serial` numbers the run's checkpoints. `marker` is the hash in the first line of its marker, which only rank 0
    reports. A rank may name anything here: whoever reads the record validates the names.
    """

    checkpoint: Text
    serial: int
    files: Annotated[tuple[Name, ...], MaxLength(500)] = ()
    marker: Annotated[str, Matching(r"[0-9a-f]{64}")] | None = None
    copied: Annotated[bool, OmitDefault()] = False


class RankException(ChildReport, kind="raised"):
    """The exception that ended a rank, as its own process reported it.

    `error` is one of our errors from that process: JSON for `diagnoses.catalogue.read_error`.
    """

    type: Name
    message: Text
    trace: LongText = NO_TEXT
    error: LongText = NO_TEXT

    @property
    def text(self) -> Untrusted:
        return Untrusted(f"{self.type.raw()}: {self.message.raw().strip()}")


class LauncherNested(ChildReport, kind="nested"):
    """A rank has started a launcher; `command` begins with its name."""

    command: Words


class LauncherCaptured(ChildReport, kind="captured"):
    """A script's launcher waits for the head; `number` counts them."""

    number: int
    launcher: Name
    pid: int = 0


class LauncherWithdrawn(ChildReport, kind="withdrawn"):
    """The captured launcher of this `number` ended before its release."""

    number: int


class LauncherEscaped(ChildReport, Explained, kind="escaped"):
    """A launcher was killed, since it would have started ranks itself."""

    command: Words


class Exited(ChildReport, kind="exited"):
    """A process has exited with this code; -N if signal N killed it.

    `stack` is where its main thread was then, as faulthandler writes it.
    """

    code: Signed
    stack: Annotated[LongText, OmitDefault()] = NO_TEXT


class StartFailed(ChildReport, Explained, kind="failed"):
    """A process could not be started."""


class StandbyReady(NodeReport, kind="standby"):
    """A process has done a rank's imports, and waits for the next attempt."""


class Ending(NodeReport, Explained, kind="ending"):
    """The supervisor ends its ranks."""

    cause: EndCause | None = None


class Ended(NodeReport, kind="ended"):
    """The ranks of the node have ended: `killed` counts those that were killed, `stubborn` are pids that remain."""

    killed: int = 0
    stubborn: Pids = ()


class Listening(NodeReport, kind="listening"):
    """The run listens on rank 0's port."""

    port: int


class PortConflict(NodeReport, kind="port_taken"):
    """A process outside the run listens on rank 0's port, `beside` rank 0 if that listens as well.

    `run` is another run of Aboard's that it belongs to.
    """

    port: int
    uid: int
    user: Name = NO_TEXT
    pid: int = 0
    name: Name = NO_TEXT
    run: Name = NO_TEXT
    beside: bool = False


class AgentContinued(NodeReport, kind="continued"):
    """A signal had stopped one of Aboard's own processes, and Aboard continued it."""

    process: AgentProcess


class AgentKilled(NodeReport, kind="killed"):
    """One of Aboard's own processes was killed, without harm."""

    process: AgentProcess


class MissingCopy(NodeReport, Explained, kind="uncopied"):
    """Parts of a checkpoint could not be copied to this node."""

    checkpoint: Name
    obstacle: CopyObstacle


class NodeConnected(ConnectionChange, Explained, kind="held"):
    """The node is connected."""


class NodeDisconnected(ConnectionChange, Explained, kind="cut"):
    """The connection to the node is lost; its ranks run on until their lease expires."""


class NodeLost(ConnectionChange, Explained, kind="gone"):
    """The node is lost.

    If its agents were killed: `supervisor`, `guard` and `bridge` are the signals, 0 for an unknown one; that was `ago`
    seconds before, and `killed` counts the ranks that were killed then.
    """

    supervisor: int | None = None
    guard: int | None = None
    bridge: int | None = None
    killed: int | None = None
    ago: float | None = None


class RankStopped(ConnectionChange, kind="stopped"):
    """A signal has stopped a rank, which was not continued for a while."""


class AttemptStarted(RunChange, kind="generation"):
    """An attempt at running all ranks begins; the first has `number` 1."""

    number: int


class SteppingStarted(RunChange, kind="stepping"):
    """The ranks begin their first step; they continue from the step `start`, if their program reports it."""

    start: int | None = None


class CaughtUp(RunChange, kind="caught_up"):
    """All steps that a failure lost are repeated."""


class VerdictChanged(RunChange, kind="verdict"):
    """What the progress watch found; without findings, the run makes progress again."""

    findings: Findings = ()


class Deciding(RunChange, Explained, kind="deciding"):
    """The end of the attempt is decided, because of a `death` or not; if the ranks `was_stopped`, none is blamed.

    `sign` is the time of the first sign of a run that is stuck.
    """

    death: bool = False
    was_stopped: bool | None = None
    sign: float | None = None


class Stopping(RunChange, Explained, kind="stopping"):
    """Somebody stops the run."""


class Restarting(RunChange, Explained, kind="restarting"):
    """The attempt is given up for one on another port."""


class Settling(RunChange, Explained, kind="settling"):
    """A failed attempt waits until silent nodes are back or lost; `findings` are its verdict so far."""

    nodes: Nodes = ()
    findings: Findings = ()


class Recovering(RunChange, kind="recovering"):
    """An attempt has failed, and what is done about it; with `again`, something else than was decided before.

    `findings` are the verdict, which `seen` and `fix` sum up, and `doing` says what happens until the next attempt.
    `most` is the number of the last attempt that the budget allows. All ranks have reached `step`, the last checkpoint
    is that of the step `saved`, and an undisturbed step takes `step_seconds`.
    """

    failure: Failure
    decision: Recovery
    seen: Lines = NO_TEXT
    fix: Lines = NO_TEXT
    doing: Text = NO_TEXT
    most: int = 0
    again: bool = False
    step: int | None = None
    step_seconds: float | None = None
    saved: int | None = None
    findings: Findings = ()


class Finished(RunChange, Explained, kind="finished"):
    """The run is over; not `monitored` if a script called no launcher. The figures are those of `recovering`."""

    code: Signed
    step: int | None = None
    step_seconds: float | None = None
    saved: int | None = None
    monitored: Annotated[bool, OmitDefault()] = True


class SpareChanged(RunChange, Explained, kind="spare"):
    """A spare can't take over, or can again if there is no reason why not."""


class Unsent(RunChange, Explained, kind="unsent"):
    """Messages or metrics don't arrive at this receiver, or do again if there is no reason why not."""

    receiver: Name
    fix: Lines = NO_TEXT


class Dropped(Bookkeeping, kind="dropped"):
    """What is missing: a node sent more than is kept, or, without a node, the disk was full."""

    events: Annotated[int, OmitDefault()] = 0
    measurements: Annotated[int, OmitDefault()] = 0


class PortChosen(Bookkeeping, kind="port"):
    """Rank 0 listens on this port."""

    port: int


class ConductorPaused(Bookkeeping, kind="paused"):
    """The conductor itself did not run for this long."""

    seconds: float = 0.0


class SnapshotJudged(Bookkeeping, kind="snapshot_judged"):
    """The snapshot with this number was judged; it covers all events before this."""

    number: int


class StandbysReady(Bookkeeping, kind="standbys"):
    """On these nodes, processes wait that can become the ranks of the next attempt."""

    nodes: Nodes = ()


class OldSupervisorEnded(Bookkeeping, kind="old_ended"):
    """The supervisor of an earlier attempt, which could not be reached, has ended."""


@dataclass(frozen=True, kw_only=True)
class UnknownEvent:
    """Of another version's kind, or of wrong fields: it changes nothing."""

    kind: Word


ChildEvent = (
    Unpacking | Started | PhaseReached | FilesSaved | RankException | LauncherNested | LauncherCaptured |
    LauncherWithdrawn | LauncherEscaped | Exited | StartFailed
)  # fmt: skip
NodeEvent = StandbyReady | Ending | Ended | Listening | PortConflict | AgentContinued | AgentKilled | MissingCopy
ConnectionEvent = NodeConnected | NodeDisconnected | NodeLost | RankStopped
RunEvent = (
    AttemptStarted | SteppingStarted | CaughtUp | VerdictChanged | Deciding | Stopping | Restarting | Settling |
    Recovering | Finished | SpareChanged | Unsent
)  # fmt: skip
BookkeepingEvent = Dropped | PortChosen | ConductorPaused | SnapshotJudged | StandbysReady | OldSupervisorEnded
KnownEvent = ChildEvent | NodeEvent | ConnectionEvent | RunEvent | BookkeepingEvent
EventBody = KnownEvent | UnknownEvent
