"""A run is a fold over its events: O(1) per event, the same live and replayed from disk."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Annotated, Self, assert_never

from aboard.core.cluster.node_sets import fold_names
from aboard.core.decoding import Lines, MaxLength
from aboard.core.run import event_kinds as kinds
from aboard.core.run.events import Event, Measurement
from aboard.core.run.rank_phases import BEACON_PHASES, Phase
from aboard.core.run.run_ledger import REPEATED, RunLedger
from aboard.core.run.saved_markers import SavedMarker, choose_newest, find_saved_marker
from aboard.core.run.training_metrics import LossCurve
from aboard.core.text.durations import format_duration
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted, escape_lines, escape_text
from aboard.lazy_dataclass import dataclass

# Tells a rank which generation it belongs to.
GENERATION = "ABOARD_GENERATION"
# The limit of a stated reason for an end.
WHY_CHARS = 160
MOST_RECOVERIES = 100
MOST_NODES = 16_384
# By then, ranks that found rank 0's port have formed their group.
MEETING_SECONDS = 10.0


@dataclass(kw_only=True)
class RankProcess:
    """One process of a run, folded from its events. `since` is when it reached its phase."""

    node: str
    name: str
    state: str = "waiting"
    at: float = 0.0
    phase: Phase = Phase.WAITING
    since: float = 0.0
    code: int | None = None
    why: Untrusted = NO_TEXT
    raised: kinds.RankException | None = None
    raised_at: float | None = None
    # Where its main thread was when a signal killed it, as faulthandler writes it.
    stack: Untrusted = NO_TEXT

    @property
    def rank(self) -> int:
        """Its rank, which is its name; 0 if it has another name."""
        return int(self.name) if self.name.isdigit() else 0

    @property
    def dead(self) -> bool:
        return self.state == "failed" or (self.state == "exited" and self.code != 0)

    @property
    def died_at(self) -> float:
        """The time of the first sign: an exception is reported before the process exits."""
        return self.at if self.raised_at is None else min(self.at, self.raised_at)


@dataclass(kw_only=True)
class NodeConnection:
    """A node of the run: connected, cut off since a time, or gone with the reason."""

    state: str = "waiting"
    at: float = 0.0
    why: Untrusted = NO_TEXT
    ended: bool = False
    stubborn: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PortOwner(kinds.PortConflict):
    """A process outside the run that listens on rank 0's port of a node."""

    node: str

    def __str__(self) -> str:
        who = f"{self.name.visible(40)} (pid {self.pid}) of " if self.pid else "a process of "
        if self.run:
            return f"{who}the active run {name_run(self.run)}"
        known = self.user and self.user != str(self.uid)
        return f"{who}{f'user {self.user.visible(40)}, uid {self.uid}' if known else f'uid {self.uid}'}"


def describe_spare(name: str, why: str) -> str:
    """A change of a spare, in one line."""
    return f"spare {name} is left out: {why}" if why else f"spare {name} passes its check again"


def describe_unsent(unsent: kinds.Unsent) -> str:
    """What does not arrive where, and what to type."""
    receiver, why, fix = (text.raw() for text in (unsent.receiver, unsent.why, unsent.fix))
    return escape_lines(f"warning: {why}\n    {fix}".rstrip() if why else f"{receiver} works again")


def name_run(name: Untrusted) -> str:
    """The run's id, as `aboard stop` takes it: a restart has the attempt's number behind it."""
    run, dot, attempt = name.visible(100).rpartition(".")
    return run if dot and attempt.isdecimal() else name.visible(100)


@dataclass(frozen=True, kw_only=True)
class NestedLauncher:
    """A launcher that a rank started before it had joined the run's process group; its command begins with its name."""

    node: str
    child: str
    at: float
    command: tuple[Untrusted, ...]

    @property
    def name(self) -> Untrusted:
        """Its name, as `torchrun` or `torch.distributed.run`."""
        words = self.command[2:] if self.command[:2] == (Untrusted("python"), Untrusted("-m")) else self.command
        return words[0] if words else NO_TEXT


@dataclass(frozen=True, kw_only=True)
class SupervisorEnd:
    """Why the supervisor of a node ended its ranks, or was killed, without a request of the head.

    `cause` is one of END_CAUSES, or `killed` with the agents that were, each with the signal, 0 if it is unknown.
    """

    at: float
    cause: str
    why: Untrusted = NO_TEXT
    agents: Mapping[str, int] = field(default_factory=dict)


@dataclass(kw_only=True)
class Generation:
    """One attempt at running all ranks; a restart is the next one of the same run."""

    number: int = 0
    at: float = 0.0
    children: dict[tuple[str, str], RankProcess] = field(default_factory=dict)
    connections: dict[str, NodeConnection] = field(default_factory=dict)
    phases: Counter[Phase] = field(default_factory=Counter)
    first_death: RankProcess | None = None
    # Nodes that were lost before their ranks had finished, in that order.
    lost: list[str] = field(default_factory=list)
    # Who else listens on rank 0's port.
    port_owner: PortOwner | None = None
    # The first launcher that a rank started in place of joining the run, and when rank 0 first listened on its port.
    nested: NestedLauncher | None = None
    listening: float | None = None
    # A rank that was stopped by a signal and not resumed.
    stopped: RankProcess | None = None
    # When the end was decided for another reason than a death: later deaths are caused by it.
    decided: float | None = None
    # When stopping the live ranks began, for whatever reason.
    ending: float | None = None
    # Nodes whose supervisor ended its ranks by itself or was killed.
    supervisor_ends: dict[str, SupervisorEnd] = field(default_factory=dict)
    # How often one of Aboard's processes was `continued` or `killed` without harm: by node, process and which of both.
    disturbances: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    # The longest time for which the conductor did not run.
    paused: float = 0.0
    running: int = 0
    exited: int = 0
    # When any rank last reached a new phase.
    moved: float = 0.0

    @property
    def dead(self) -> list[RankProcess]:
        return [child for child in self.children.values() if child.dead]

    @property
    def furthest(self) -> Phase:
        """The furthest phase of any rank."""
        return max((phase for phase, count in self.phases.items() if count), default=Phase.WAITING)

    @property
    def signs(self) -> dict[str, float]:
        """When each node that failed showed it: a rank died or was stopped, its supervisor ended, or it was lost."""
        first, stopped = self.first_death, self.stopped
        found = {node: end.at for node, end in self.supervisor_ends.items()}
        found |= {node: self.connections[node].at for node in self.lost}
        if stopped is not None:
            # The event says since when.
            found[stopped.node] = float("inf")
        if first is not None:
            found[first.node] = min(first.died_at, found.get(first.node, first.died_at))
        return found


@dataclass(frozen=True, kw_only=True)
class GenerationEnd:
    """How a generation failed, by its verdict, and the action that its class of failure called for.

    `down` is how many seconds passed until ranks ran again, and `idle` those from the first sign of the failure until
    they trained again; None if they never did. `detection` passed before the failure was known.
    """

    number: int
    at: float
    step: int | None = None
    code: str = ""
    seen: Lines = ""
    failure: str = ""
    action: str = ""
    why: str = ""
    nodes: Annotated[tuple[str, ...], MaxLength(MOST_NODES)] = ()
    down: float | None = None
    detection: float = 0.0
    idle: float | None = None
    # What is done about it, and the number of the last generation that the budget of restarts allows.
    doing: str = ""
    most: int = 0
    # What to type; it remains true if the run went on elsewhere.
    fix: Lines = ""

    @property
    def pause(self) -> str:
        """For how long nothing was trained, or, of ranks whose steps Aboard doesn't see, no rank ran."""
        if self.idle is None:
            return "" if self.down is None else f"no ranks for {format_duration(self.down)}"
        detection = format_duration(self.detection)
        until = f"{format_duration(self.idle - self.detection)} until the new ranks trained"
        return f"no training for {format_duration(self.idle)} ({until}, {detection} to detect it)"

    def __str__(self) -> str:
        """In one line."""
        where = f" on {fold_names(self.nodes)}" if self.nodes else ""
        reached = "" if self.step is None else f" at step {self.step:,}"
        seen = self.seen.partition("\n")[0]
        failed = f"{self.code or 'failed'}{where}{reached}" + (f": {seen}" if seen else "")
        return "; ".join(
            (f"attempt {self.number}: {failed}", f"{self.action}: {self.why}", *filter(None, [self.pause]))
        )


@dataclass(kw_only=True)
class Run:
    """The state of a run. Mutable, since a copy per event would cost O(ranks)."""

    id: str
    generation: Generation = field(default_factory=Generation)
    samples: dict[tuple[str, str], Measurement] = field(default_factory=dict)
    # The last step of each rank that has reported one, also after its end.
    steps: dict[tuple[str, str], int] = field(default_factory=dict)
    # From the rank that reports any, usually a trainer's rank 0.
    metrics: dict[str, float] = field(default_factory=dict)
    curve: LossCurve = field(default_factory=LossCurve)
    stopping: str = ""
    # When the first generation started.
    began: float = 0.0
    # Why the last generation was given up for the next one, and how often that was for another port.
    restarting: str = ""
    port_moves: int = 0
    # The ends of earlier generations, the newest last.
    recoveries: deque[GenerationEnd] = field(default_factory=lambda: deque(maxlen=MOST_RECOVERIES))
    # What is being done before the next generation starts.
    recovering: str = ""
    # Spares that can't take over now, and why.
    unfit_spares: dict[str, str] = field(default_factory=dict)
    finished: kinds.Finished | None = None
    # By node, the last checkpoint of which it did not get its copies, until a later one is copied.
    uncopied: dict[str, kinds.MissingCopy] = field(default_factory=dict)
    # The serials of the last two checkpoints that ranks saved, and of the last one that a node has the copies of.
    saved: tuple[int, ...] = ()
    copied: dict[str, int] = field(default_factory=dict)
    # The newest checkpoints that rank 0 saved, with the hashes of their markers.
    markers: tuple[SavedMarker, ...] = ()
    # Why messages or metrics of the run don't arrive, by receiver.
    unsent: dict[str, str] = field(default_factory=dict)
    # What nodes sent beyond the space that the record has for them: counts by kind.
    dropped: dict[str, dict[str, int]] = field(default_factory=dict)
    ledger: RunLedger = field(default_factory=RunLedger)

    @classmethod
    def replay(cls, run: str, events: Iterable[Event]) -> Self:
        folded = cls(id=run)
        for event in events:
            folded.apply(event)
        return folded

    def apply(self, event: Event) -> None:  # noqa: C901 - an arm for each group, as the next
        """Applies one event; unknown kinds change nothing."""
        match event.body:
            case kinds.ChildReport() as body:
                self._apply_child_report(event, body)
            case kinds.NodeReport() as body:
                self._apply_node_report(event, body)
            case kinds.NodeConnected() | kinds.NodeDisconnected() | kinds.NodeLost() as body:
                self._apply_connection(event, body)
            case kinds.RankStopped():
                self.generation.stopped = self.generation.children.get((event.node, event.child))
            case kinds.RunChange() as body:
                self._apply_run_change(event, body)
            case kinds.ConductorPaused(seconds=seconds):
                self.generation.paused = max(self.generation.paused, seconds)
            case kinds.Dropped() as body:
                counts = {"events": body.events, "measurements": body.measurements}
                if event.node:
                    self.dropped[event.node] = {kind: count for kind, count in counts.items() if count}
            case kinds.PortChosen() | kinds.SnapshotJudged() | kinds.StandbysReady() | kinds.OldSupervisorEnded():
                pass
            case kinds.UnknownEvent():
                pass
            case forgotten:
                assert_never(forgotten)
        deaths = self.generation.signs if isinstance(event.body, kinds.Deciding) else {}
        self.ledger.apply(event, phase=self.generation.furthest, deaths=deaths)

    def take(self, measurement: Measurement) -> None:
        """Applies a measurement: the latest values win; the first step is a phase of its own."""
        self.samples[measurement.node, measurement.child] = measurement
        # A trainer reports metrics immediately, the beacon steps a few times per second: the higher step is newer.
        step = int(max(measurement.values.get("step", 0), measurement.metrics.get("step", 0)))
        if measurement.child and step > 0:
            key = (measurement.node, measurement.child)
            self.steps[key] = max(step, self.steps.get(key, 0))
            child = self.generation.children.get((measurement.node, measurement.child))
            if child is not None:
                self._reach_phase(child, Phase.STEPS, measurement.at)
        self.ledger.step_seconds = measurement.metrics.get("typical_step_seconds") or self.ledger.step_seconds
        if measurement.metrics:
            # A report may lack some of them: an eval_loss stays until a newer one comes.
            self.metrics.update(measurement.metrics)
            if "step" in measurement.metrics and "loss" in measurement.metrics:
                self.curve.add(int(measurement.metrics["step"]), measurement.metrics["loss"])

    def describe_uncopied(self) -> Iterator[str]:
        """What is on one disk only: in one line for each node that lacks a copy, or gets one later than it should."""
        for node, copy in self.uncopied.items():
            yield f"{copy.checkpoint.visible(40)} is not copied to {node}: {copy.why.visible(200)}"
        for node, serial in self.copied.items():
            if node not in self.uncopied and len(self.saved) > 1 and serial < self.saved[0]:
                yield f"the copies on {node} are late: two checkpoints have been saved since the last one it has"

    @property
    def notices(self) -> dict[str, str]:
        """What the record lacks, in one line for each node."""
        return {
            node: f"{node} sent more {' and '.join(counts)} than a run keeps: {sum(counts.values()):,} dropped"
            for node, counts in sorted(self.dropped.items())
            if counts
        }

    @property
    def step(self) -> int | None:
        """The step that all ranks that report steps have reached."""
        return min(self.steps.values(), default=None)

    def find_milestone(self, measurement: Measurement) -> kinds.SteppingStarted | kinds.CaughtUp | None:
        """The event that a measurement amounts to: this generation begins its first step, or repeats none any more."""
        ledger, start = self.ledger, measurement.metrics.get("start")
        if self.generation.ending is not None:
            return None
        # On a busy machine, another rank's first step may be known before the step that rank 0 continues from.
        is_late = ledger.is_stepping and ledger.start is None and start is not None
        if is_late or (not ledger.is_stepping and (start is not None or self.generation.phases[Phase.STEPS])):
            return kinds.SteppingStarted(start=None if start is None else int(start))
        if ledger.current == REPEATED and (self.step or 0) >= ledger.reached:
            return kinds.CaughtUp()
        return None

    def _apply_child_report(self, event: Event, body: kinds.ChildEvent) -> None:
        now = self.generation
        match body:
            case kinds.Unpacking() | kinds.Started() | kinds.Exited() | kinds.StartFailed():
                self._apply_state(self._get_child(event), event.at, body)
            case kinds.PhaseReached(phase=phase):
                self._reach_phase(self._get_child(event), BEACON_PHASES[phase], event.at)
            case kinds.RankException():
                child = self._get_child(event)
                child.raised, child.raised_at = body, event.at
            case kinds.FilesSaved():
                self._apply_saved(event, body)
            case kinds.LauncherNested(command=command):
                self._apply_nested(event, command)
            case kinds.LauncherCaptured() | kinds.LauncherWithdrawn() | kinds.LauncherEscaped():
                pass
            case forgotten:
                assert_never(forgotten)
        first, dead = now.first_death, now.children.get((event.node, event.child))
        # Events of two nodes may arrive out of order: the corrected time decides.
        if dead is not None and dead.dead and (first is None or dead.died_at < first.died_at):
            now.first_death = dead

    def _apply_node_report(self, event: Event, body: kinds.NodeEvent) -> None:
        now = self.generation
        match body:
            case kinds.Ending(cause=cause, why=why):
                if cause in ("lease", "guard", "signal"):
                    now.supervisor_ends.setdefault(event.node, SupervisorEnd(at=event.at, cause=cause, why=why))
            case kinds.Ended(stubborn=stubborn):
                connection = self._get_connection(event.node)
                connection.ended, connection.stubborn = True, stubborn
            case kinds.PortConflict():
                now.port_owner = PortOwner(node=event.node, **vars(body))
            case kinds.Listening():
                now.listening = now.listening or event.at
            case kinds.AgentContinued(process=process) | kinds.AgentKilled(process=process):
                now.disturbances[event.node, process, body.kind] += 1
            case kinds.MissingCopy():
                self.uncopied[event.node] = body
            case kinds.StandbyReady():
                pass
            case forgotten:
                assert_never(forgotten)

    def _apply_run_change(self, event: Event, body: kinds.RunEvent) -> None:  # noqa: C901 - an arm for each kind
        now = self.generation
        match body:
            case kinds.AttemptStarted(number=number):
                self._begin_attempt(number, event.at)
            case kinds.SteppingStarted():
                self._apply_stepping(event.at)
            case kinds.Deciding(death=death):
                # If a death decided the end, it is the cause, whatever two clocks say about the order.
                now.decided = None if death else event.at
                now.ending = event.at
            case kinds.Stopping(why=why):
                self.stopping = why.visible(WHY_CHARS)
            case kinds.Restarting(why=why):
                self.restarting = why.visible(WHY_CHARS)
                self.port_moves += 1
            case kinds.Recovering():
                self._apply_recovery(event, body)
            case kinds.Finished():
                self.finished = body
            case kinds.SpareChanged(why=why):
                self.unfit_spares.pop(event.node, None)
                if why:
                    self.unfit_spares[event.node] = why.visible(WHY_CHARS)
            case kinds.Unsent(receiver=receiver, why=why):
                self.unsent[receiver.visible(WHY_CHARS)] = why.visible(WHY_CHARS)
            case kinds.CaughtUp() | kinds.VerdictChanged() | kinds.Settling():
                pass
            case forgotten:
                assert_never(forgotten)

    def _begin_attempt(self, number: int, at: float) -> None:
        self.generation = Generation(number=number, at=at, moved=at)
        self.began = self.began or at
        self.samples.clear()
        self.steps.clear()
        self.saved, self.copied = (), {}
        self.stopping = self.recovering = ""
        # A run that was submitted again continues its record.
        self.finished = None

    def _apply_connection(
        self, event: Event, body: kinds.NodeConnected | kinds.NodeDisconnected | kinds.NodeLost
    ) -> None:
        connection = self._get_connection(event.node)
        if isinstance(body, kinds.NodeLost):
            self._apply_killed_agents(event, body, connection)
            if not connection.ended and event.node not in self.generation.lost:
                self.generation.lost.append(event.node)
        connection.state, connection.at, connection.why = body.kind, event.at, body.why

    def _apply_killed_agents(self, event: Event, body: kinds.NodeLost, connection: NodeConnection) -> None:
        signals = {"supervisor": body.supervisor, "guard": body.guard, "bridge": body.bridge}
        if agents := {name: number for name, number in signals.items() if number is not None}:
            # A bridge that was killed as well was lost before.
            at = min(event.at, connection.at) if connection.state == kinds.NodeDisconnected.kind else event.at
            end = SupervisorEnd(at=at - (body.ago or 0.0), cause="killed", why=body.why, agents=agents)
            self.generation.supervisor_ends.setdefault(event.node, end)

    def _get_connection(self, node: str) -> NodeConnection:
        return self.generation.connections.setdefault(node, NodeConnection())

    def _apply_saved(self, event: Event, body: kinds.FilesSaved) -> None:
        if body.copied:
            self.uncopied.pop(event.node, None)
            self.copied[event.node] = body.serial
            return
        if body.serial not in self.saved:
            self.saved = (*self.saved[-1:], body.serial)
        if (marker := find_saved_marker(event)) is not None:
            self.markers = choose_newest((marker, *self.markers))

    def _apply_nested(self, event: Event, command: tuple[Untrusted, ...]) -> None:
        """Counts only before the run's own group exists: later, a rank may well start another job and wait for it."""
        now = self.generation
        child = now.children.get((event.node, event.child))
        has_group = child is not None and child.phase >= Phase.GROUP
        # Without a beacon, only the port shows that ranks meet; a nested launcher may listen there itself at once.
        met = now.listening is not None and event.at > now.listening + MEETING_SECONDS
        if now.nested is None and not has_group and not met:
            now.nested = NestedLauncher(node=event.node, child=event.child, at=event.at, command=command)

    def _apply_recovery(self, event: Event, body: kinds.Recovering) -> None:
        if body.again and self.recoveries:
            # The spare that was to take over failed its check.
            self.recoveries.pop()
        at, sign = self.generation.ending or event.at, self.ledger.failed_at
        end = GenerationEnd(
            number=self.generation.number,
            at=at,
            # Records of older versions have no step in this event.
            step=self.step if body.step is None else body.step,
            code=escape_text(body.failure.code, WHY_CHARS),
            seen=body.seen.visible(WHY_CHARS),
            failure=body.failure.kind.value,
            action=body.decision.action.value,
            why=escape_text(body.decision.why, WHY_CHARS),
            nodes=body.failure.nodes,
            detection=at - sign if self.generation.at <= sign <= at else 0.0,
            doing=body.doing.visible(WHY_CHARS),
            most=body.most,
            fix=escape_lines(body.fix.raw()),
        )
        self.recoveries.append(end)
        self.restarting, self.recovering = end.seen, end.why
        self.port_moves = 0

    def _apply_stepping(self, at: float) -> None:
        if self.recoveries and self.recoveries[-1].idle is None:
            last = self.recoveries[-1]
            self.recoveries[-1] = replace(last, idle=max(last.detection, at - last.at + last.detection))

    def _get_child(self, event: Event) -> RankProcess:
        now, key = self.generation, (event.node, event.child)
        if key not in now.children:
            now.children[key] = RankProcess(node=event.node, name=event.child)
            now.phases[Phase.WAITING] += 1
        return now.children[key]

    def _apply_state(
        self, process: RankProcess, at: float, body: kinds.Unpacking | kinds.Started | kinds.Exited | kinds.StartFailed
    ) -> None:
        now = self.generation
        now.running += isinstance(body, kinds.Started) - (process.state == kinds.Started.kind)
        now.exited += isinstance(body, kinds.Exited) - (process.state == kinds.Exited.kind)
        process.state, process.at = body.kind, at
        process.code, process.stack = (body.code, body.stack) if isinstance(body, kinds.Exited) else (None, NO_TEXT)
        process.why = body.why if isinstance(body, kinds.StartFailed) else NO_TEXT
        if isinstance(body, kinds.Started):
            self._reach_phase(process, Phase.STARTED, at)
            if self.recoveries and self.recoveries[-1].down is None:
                last = self.recoveries[-1]
                self.recoveries[-1] = replace(last, down=max(0.0, at - last.at))
        elif process.code == 0:
            self._reach_phase(process, Phase.DONE, at)

    def _reach_phase(self, process: RankProcess, phase: Phase, at: float) -> None:
        if phase > process.phase:
            now = self.generation
            now.phases[process.phase] -= 1
            now.phases[phase] += 1
            process.phase, process.since = phase, at
            now.moved = max(now.moved, at)
