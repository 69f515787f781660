"""A run is a fold over its events: O(1) per event, the same live and replayed from disk."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Annotated, Any, Self

from aboard.core.cluster.node_sets import fold_names
from aboard.core.decoding import Lines, MaxLength
from aboard.core.run.events import AGENT_PROCESSES, COPY_OBSTACLES, END_CAUSES, Event, Measurement
from aboard.core.run.rank_phases import BEACON_PHASES, Phase
from aboard.core.run.run_ledger import REPEATED, RunLedger
from aboard.core.run.saved_markers import SavedMarker, choose_newest, find_saved_marker
from aboard.core.run.training_metrics import LossCurve
from aboard.core.text.durations import format_duration
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted, escape_lines
from aboard.lazy_dataclass import dataclass

# Tells a rank which generation it belongs to.
GENERATION = "ABOARD_GENERATION"
# The limit of a stated reason for an end.
WHY_CHARS = 160
MOST_RECOVERIES = 100
MOST_NODES = 16_384
# By then, ranks that found rank 0's port have formed their group.
MEETING_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class RankException:
    """The exception that ended a rank, as its own process reported it.

    `error` is one of our errors from that process: JSON for `diagnoses.catalogue.read_error`.
    """

    type: Untrusted
    message: Untrusted
    trace: Untrusted = NO_TEXT
    error: Untrusted = NO_TEXT

    @property
    def text(self) -> Untrusted:
        return Untrusted(f"{self.type.raw()}: {self.message.raw().strip()}")


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
    raised: RankException | None = None
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
class PortOwner:
    """A process outside the run that listens on rank 0's port; `beside` rank 0 if that listens as well.

    `run` is another run of Aboard's that it belongs to.
    """

    node: str
    port: int
    uid: int
    user: Untrusted = NO_TEXT
    pid: int = 0
    name: Untrusted = NO_TEXT
    run: Untrusted = NO_TEXT
    beside: bool = False

    def __str__(self) -> str:
        who = f"{self.name.visible(40)} (pid {self.pid}) of " if self.pid else "a process of "
        if self.run:
            return f"{who}the active run {name_run(self.run)}"
        known = self.user and self.user != str(self.uid)
        return f"{who}{f'user {self.user.visible(40)}, uid {self.uid}' if known else f'uid {self.uid}'}"


def describe_spare(name: str, why: str) -> str:
    """A change of a spare, in one line."""
    return f"spare {name} is left out: {why}" if why else f"spare {name} passes its check again"


def describe_unsent(event: Event) -> str:
    """What does not arrive where, and what to type."""
    receiver, why, fix = (_get_text(event, name).raw() for name in ("receiver", "why", "fix"))
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


@dataclass(frozen=True, kw_only=True)
class MissingCopy:
    """Parts of a checkpoint that are not copied to a node, with one of COPY_OBSTACLES."""

    checkpoint: Untrusted
    obstacle: str
    why: Untrusted


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
    finished: Mapping[str, Any] | None = None
    # By node, the last checkpoint of which it did not get its copies, until a later one is copied.
    uncopied: dict[str, MissingCopy] = field(default_factory=dict)
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

    def apply(self, event: Event) -> None:
        """Applies one event; unknown kinds change nothing."""
        match event.kind:
            case "generation":
                self.generation = Generation(number=int(event.data["number"]), at=event.at, moved=event.at)
                self.began = self.began or event.at
                self.samples.clear()
                self.steps.clear()
                self.saved, self.copied = (), {}
                self.stopping = self.recovering = ""
                # A run that was submitted again continues its record.
                self.finished = None
            case "nested":
                self._apply_nested(event)
            case "held" | "cut" | "gone" | "ended" | "port_taken" | "listening" | "uncopied" | "saved":
                self._apply_node(event)
            case "ending" | "continued" | "killed" | "paused":
                self._apply_own_process(event)
            case "stopped":
                self.generation.stopped = self.generation.children.get((event.node, event.child))
            case "unpacking" | "started" | "exited" | "failed" | "phase" | "raised":
                self._apply_child(event)
            case "restarting" | "recovering" | "spare" | "unsent":
                self._apply_restart(event)
            case "dropped" if event.node:
                counts = ((kind, event.data.get(kind)) for kind in ("events", "measurements"))
                self.dropped[event.node] = {kind: count for kind, count in counts if isinstance(count, int) and count}
            case "deciding" | "stopping" | "stepping" | "finished":
                self._apply_end(event)
            case _:
                pass
        deaths = self.generation.signs if event.kind == "deciding" else {}
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

    def find_milestone(self, measurement: Measurement) -> tuple[str, dict[str, Any]] | None:
        """The event that a measurement amounts to: this generation begins its first step, or repeats none any more."""
        ledger, start = self.ledger, measurement.metrics.get("start")
        if self.generation.ending is not None:
            return None
        # On a busy machine, another rank's first step may be known before the step that rank 0 continues from.
        is_late = ledger.is_stepping and ledger.start is None and start is not None
        if is_late or (not ledger.is_stepping and (start is not None or self.generation.phases[Phase.STEPS])):
            return "stepping", {} if start is None else {"start": int(start)}
        if ledger.current == REPEATED and (self.step or 0) >= ledger.reached:
            return "caught_up", {}
        return None

    def _apply_connection(self, event: Event) -> None:
        connection = self._get_connection(event.node)
        if event.kind == "gone":
            self._apply_killed_agents(event, connection)
            if not connection.ended and event.node not in self.generation.lost:
                self.generation.lost.append(event.node)
        connection.state, connection.at, connection.why = event.kind, event.at, _get_text(event, "why")

    def _apply_own_process(self, event: Event) -> None:
        """Something happened to one of Aboard's own processes."""
        now = self.generation
        if event.kind == "paused":
            now.paused = max(now.paused, float(event.data.get("seconds", 0)))
        elif event.kind == "ending":
            cause = _get_text(event, "cause").as_known(END_CAUSES)
            if cause in ("lease", "guard", "signal"):
                end = SupervisorEnd(at=event.at, cause=cause, why=_get_text(event, "why"))
                now.supervisor_ends.setdefault(event.node, end)
        elif process := _get_text(event, "process").as_known(AGENT_PROCESSES):
            now.disturbances[event.node, process, event.kind] += 1

    def _apply_killed_agents(self, event: Event, connection: NodeConnection) -> None:
        agents = {name: int(event.data[name]) for name in AGENT_PROCESSES if name in event.data}
        if agents:
            # A bridge that was killed as well was lost before.
            at = min(event.at, connection.at) if connection.state == "cut" else event.at
            at -= float(event.data.get("ago", 0.0))
            end = SupervisorEnd(at=at, cause="killed", why=_get_text(event, "why"), agents=agents)
            self.generation.supervisor_ends.setdefault(event.node, end)

    def _get_connection(self, node: str) -> NodeConnection:
        return self.generation.connections.setdefault(node, NodeConnection())

    def _apply_node(self, event: Event) -> None:
        if event.kind in ("uncopied", "saved"):
            self._apply_copies(event)
            return
        if event.kind == "port_taken":
            self.generation.port_owner = PortOwner(
                node=event.node,
                port=event.data["port"],
                uid=event.data["uid"],
                user=_get_text(event, "user"),
                pid=event.data.get("pid", 0),
                name=_get_text(event, "name"),
                run=_get_text(event, "run"),
                beside=event.data.get("beside", False),
            )
        elif event.kind == "listening":
            self.generation.listening = self.generation.listening or event.at
        elif event.kind == "ended":
            connection = self._get_connection(event.node)
            connection.ended = True
            connection.stubborn = tuple(event.data.get("stubborn", ()))
        else:
            self._apply_connection(event)

    def _apply_copies(self, event: Event) -> None:
        obstacle = _get_text(event, "obstacle").as_known(COPY_OBSTACLES)
        if event.kind == "uncopied" and obstacle:
            self.uncopied[event.node] = MissingCopy(
                checkpoint=_get_text(event, "checkpoint"), obstacle=obstacle, why=_get_text(event, "why")
            )
        elif event.data.get("copied"):
            self.uncopied.pop(event.node, None)
            self.copied[event.node] = event.data.get("serial", 0)
        else:
            if (serial := event.data.get("serial", 0)) not in self.saved:
                self.saved = (*self.saved[-1:], serial)
            if (marker := find_saved_marker(event)) is not None:
                self.markers = choose_newest((marker, *self.markers))

    def _apply_nested(self, event: Event) -> None:
        """Counts only before the run's own group exists: later, a rank may well start another job and wait for it."""
        now = self.generation
        child = now.children.get((event.node, event.child))
        has_group = child is not None and child.phase >= Phase.GROUP
        # Without a beacon, only the port shows that ranks meet; a nested launcher may listen there itself at once.
        met = now.listening is not None and event.at > now.listening + MEETING_SECONDS
        if now.nested is None and not has_group and not met:
            words = event.data.get("command", ())
            command = tuple(word if isinstance(word, Untrusted) else Untrusted(str(word)) for word in words)
            now.nested = NestedLauncher(node=event.node, child=event.child, at=event.at, command=command)

    def _apply_restart(self, event: Event) -> None:
        """A generation needs another port, or failed, and this is done about it; or spares or messages changed."""
        if event.kind == "unsent":
            receiver, why = (_get_text(event, name).visible(WHY_CHARS) for name in ("receiver", "why"))
            self.unsent[receiver] = why
            return
        if event.kind == "spare":
            self.unfit_spares.pop(event.node, None)
            if why := _get_text(event, "why").visible(WHY_CHARS):
                self.unfit_spares[event.node] = why
            return
        if event.kind == "restarting":
            self.restarting = _get_text(event, "why").visible(WHY_CHARS)
            self.port_moves += 1
            return
        names = ("code", "seen", "failure", "action", "why", "doing")
        text: dict[str, Any] = {name: _get_text(event, name).visible(WHY_CHARS) for name in names}
        if event.data.get("again") and self.recoveries:
            # The spare that was to take over failed its check.
            self.recoveries.pop()
        nodes = tuple(map(str, event.data.get("nodes", ())))
        step, most = (value if isinstance(value, int) else None for value in map(event.data.get, ("step", "most")))
        at = self.generation.ending or event.at
        # Records of older versions have no step in this event.
        step = self.step if step is None else step
        fix = escape_lines(_get_text(event, "fix").raw())
        end = GenerationEnd(number=self.generation.number, at=at, step=step, nodes=nodes, most=most or 0, fix=fix)
        sign = self.ledger.failed_at
        detection = at - sign if self.generation.at <= sign <= at else 0.0
        self.recoveries.append(replace(end, detection=detection, **text))
        self.restarting, self.recovering = text["seen"], text["why"]
        self.port_moves = 0

    def _apply_end(self, event: Event) -> None:
        if event.kind == "deciding":
            # If a death decided the end, it is the cause, whatever two clocks say about the order.
            self.generation.decided = None if event.data.get("death") else event.at
            self.generation.ending = event.at
        elif event.kind == "stopping":
            self.stopping = _get_text(event, "why").visible(WHY_CHARS)
        elif event.kind == "stepping":
            if self.recoveries and self.recoveries[-1].idle is None:
                last = self.recoveries[-1]
                self.recoveries[-1] = replace(last, idle=max(last.detection, event.at - last.at + last.detection))
        else:
            self.finished = {**event.data, "why": _get_text(event, "why")}

    def _apply_child(self, event: Event) -> None:
        now = self.generation
        child = now.children.get((event.node, event.child))
        if child is None:
            child = now.children[event.node, event.child] = RankProcess(node=event.node, name=event.child)
            now.phases[Phase.WAITING] += 1
        if event.kind == "phase":
            name = _get_text(event, "phase").as_known(BEACON_PHASES) or ""
            self._reach_phase(child, BEACON_PHASES.get(name, Phase.WAITING), event.at)
        elif event.kind == "raised":
            fields = {name: _get_text(event, name) for name in ("type", "message", "trace", "error")}
            child.raised, child.raised_at = RankException(**fields), event.at
        else:
            self._apply_state(child, event)
        first = now.first_death
        # Events of two nodes may arrive out of order: the corrected time decides.
        if child.dead and (first is None or child.died_at < first.died_at):
            now.first_death = child

    def _apply_state(self, process: RankProcess, event: Event) -> None:
        now = self.generation
        now.running += (event.kind == "started") - (process.state == "started")
        now.exited += (event.kind == "exited") - (process.state == "exited")
        process.state, process.at = event.kind, event.at
        process.code, process.why, process.stack = (
            event.data.get("code"),
            _get_text(event, "why"),
            _get_text(event, "stack"),
        )
        if event.kind == "started":
            self._reach_phase(process, Phase.STARTED, event.at)
            if self.recoveries and self.recoveries[-1].down is None:
                last = self.recoveries[-1]
                self.recoveries[-1] = replace(last, down=max(0.0, event.at - last.at))
        elif event.kind == "exited" and process.code == 0:
            self._reach_phase(process, Phase.DONE, event.at)

    def _reach_phase(self, process: RankProcess, phase: Phase, at: float) -> None:
        if phase > process.phase:
            now = self.generation
            now.phases[process.phase] -= 1
            now.phases[phase] += 1
            process.phase, process.since = phase, at
            now.moved = max(now.moved, at)


def _get_text(event: Event, name: str) -> Untrusted:
    """Text from a supervisor or from the conductor."""
    value = event.data.get(name, "")
    return value if isinstance(value, Untrusted) else Untrusted(str(value))
