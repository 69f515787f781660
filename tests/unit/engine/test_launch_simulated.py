"""The real conductor over acted nodes: it starts all ranks, names the one that dies, and sees every node to its end."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Judgement
from aboard.core.exit_codes import EXIT_INTERRUPTED
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.events import Event
from aboard.core.run.lateness import LatenessWindow
from aboard.core.run.lease import Lease
from aboard.core.run.recovery.recovery_policy import RecoverySettings
from aboard.engine.check.check_observer import NullCheckObserver
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.launch_run import LaunchResult, launch
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.record.event_log import read_events
from aboard.record.lateness_log import read_lateness
from aboard.record.metrics_log import read_metrics
from aboard.record.node_samples import read_node_samples
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.testing.fake_supervisor import FakeNodeFaults
from aboard.testing.simulated_transport import SimulatedTransport, run_simulator

NODES, RANKS = 12, 8
REQUEST = LaunchRequest(program=Program(kind=ProgramKind.SCRIPT, target="train.py"))


class Onlooker:
    """Counts what it sees; `stop_at` is the kind of event, once for each rank, after which it has seen enough."""

    def __init__(self, stop_at: str = "") -> None:
        self.seen: Counter[str] = Counter()
        self.drawn = 0
        self.dials: Counter[str] = Counter()
        self._stop_at = stop_at
        self.conductor: Conductor | None = None

    def began(self, conductor: Conductor) -> None:
        self.conductor = conductor

    def event(self, event: Event) -> None:
        self.seen[event.kind] += 1
        if self.conductor is not None and event.kind == self._stop_at and self.seen[event.kind] == NODES * RANKS:
            self.conductor.stop("that is all")

    def tick(self, now: float) -> None:
        self.drawn += 1

    def planned(self, conductor: Conductor) -> None:
        """A further attempt is planned and has not begun."""


class PlanRecord(Record):
    """Tells the onlooker of plans after the first one, as they are recorded."""

    onlooker: Onlooker
    plans = 0

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        super().write_plan(plan)
        self.plans += 1
        conductor = self.onlooker.conductor
        if conductor is not None and self.plans > 1 and conductor.run.finished is None:
            self.onlooker.planned(conductor)


def _launch(
    folder: Path,
    onlooker: Onlooker,
    parts: dict[str, FakeNodeFaults],
    lease: Lease | None = None,
    recovery: RecoverySettings | None = None,
) -> LaunchResult:
    cluster = Cluster(nodes=tuple(Node(name=f"s{number}", slots=RANKS) for number in range(NODES)))
    run = Runs(folder).create(datetime.now(UTC), Random(0))  # noqa: S311 - a name, no secret
    record = PlanRecord.open(run, ranks=NODES * RANKS)
    record.onlooker = onlooker

    async def story() -> LaunchResult:
        async with run_simulator() as path:

            def count_dial(node: Node) -> SimulatedTransport:
                onlooker.dials[node.name] += 1
                return SimulatedTransport(path, faults=parts.get(node.name, FakeNodeFaults()))

            return await launch(
                LaunchSpec(
                    cluster=cluster,
                    request=REQUEST,
                    lease=lease or Lease(),
                    recovery=recovery or RecoverySettings(),
                ),
                record,
                check_observer=NullCheckObserver(),
                run_observer=onlooker,
                transport_for=count_dial,
            )

    try:
        return asyncio.run(story())
    finally:
        record.close()


def _kinds(folder: Path) -> Counter[str]:
    (run,) = Runs(folder).all()
    return Counter(event.kind for event in read_events(run.events))


def test_the_rank_that_dies_is_named_and_all_nodes_end(tmp_path: Path) -> None:
    """First failure wins: its exit code is the run's, the others are its consequences, no node is left."""
    onlooker = Onlooker()
    launched = _launch(tmp_path, onlooker, {"s5": FakeNodeFaults(dies={"43": 0.5})})
    assert launched.outcome is not None
    verdict = launched.findings[0]
    assert (verdict.ranks, verdict.nodes, launched.outcome.code) == ((43,), ("s5",), 1)
    assert "illegal memory access" in verdict.seen
    assert (onlooker.seen["started"], onlooker.seen["ended"]) == (NODES * RANKS, NODES)
    assert _kinds(tmp_path) == onlooker.seen


class Asker(Onlooker):
    """Asks why as soon as a rank has died, while the others are being ended."""

    def __init__(self, ask_at: str = "deciding", stop_at: str = "") -> None:
        super().__init__(stop_at)
        self.answer: asyncio.Task[Judgement] | None = None
        self._ask_at = ask_at

    def planned(self, conductor: Conductor) -> None:
        conductor.stop("one attempt is enough")

    def event(self, event: Event) -> None:
        super().event(event)
        if self.conductor is not None and self.answer is None and event.kind == self._ask_at:
            self.answer = asyncio.get_running_loop().create_task(self.conductor.ask_why())


def test_why_names_the_rank_that_has_died_while_the_others_are_ended(tmp_path: Path) -> None:
    """Whoever asks in these seconds is not told that nothing is wrong."""
    asker = Asker()
    _launch(tmp_path, asker, {"s5": FakeNodeFaults(dies={"43": 0.5})})
    assert asker.answer is not None
    assert [finding.ranks for finding in asker.answer.result().findings] == [(43,)]


def test_why_tells_nobody_to_launch_what_restarts_itself(tmp_path: Path) -> None:
    """The advice for a killed rank ends with that where nothing else starts it again."""
    asker = Asker()
    killed = {"s5": FakeNodeFaults(kills={"1/43": 0.5})}
    _launch(tmp_path, asker, killed, recovery=RecoverySettings(restarts=1, standby=False))
    assert asker.answer is not None
    (found, *_) = asker.answer.result().findings
    assert found.fix.variant == "memory"
    assert "launch again" not in found.fix


def test_why_blames_nobody_while_a_run_that_was_stopped_ends(tmp_path: Path) -> None:
    """Its ranks end by SIGTERM, and that is what was asked for."""
    asker = Asker(ask_at="exited", stop_at="started")
    _launch(tmp_path, asker, {})
    assert asker.answer is not None
    assert asker.answer.result().findings == ()


def test_a_stop_ends_all_nodes_and_blames_nobody(tmp_path: Path) -> None:
    """All ranks are ended, none by its own fault."""
    onlooker = Onlooker(stop_at="started")
    launched = _launch(tmp_path, onlooker, {})
    assert launched.outcome is not None
    assert (launched.findings, launched.outcome.code) == ((), 130)
    assert (onlooker.seen["exited"], onlooker.seen["ended"]) == (NODES * RANKS, NODES)


@pytest.mark.ci
def test_a_node_that_falls_silent_is_named(tmp_path: Path) -> None:
    """Past the lease it is gone, and so is the run; the other nodes are ended."""
    onlooker = Onlooker()
    lease = Lease(seconds=1.0, beat=0.5, grace=0.1)
    launched = _launch(tmp_path, onlooker, {"s3": FakeNodeFaults(silent=0.5)}, lease)
    assert launched.outcome is not None
    verdict = launched.findings[0]
    assert (verdict.code, verdict.nodes) == ("run-node-gone", ("s3",))
    assert onlooker.seen["ended"] == NODES - 1


class Sluggish(Onlooker):
    """Takes a tenth of a second to draw."""

    def tick(self, now: float) -> None:
        super().tick(now)
        done = monotonic() + 0.1
        while monotonic() < done:
            pass


@pytest.mark.ci
def test_a_slow_picture_is_drawn_less_often(tmp_path: Path) -> None:
    """Who looks on takes a tenth of the time: what takes 0.1 s to draw is drawn once a second, not four times."""
    slow = Sluggish()
    began = monotonic()
    _launch(tmp_path, slow, {"s5": FakeNodeFaults(dies={"43": 2.5})})
    assert 1 <= slow.drawn <= 1 + (monotonic() - began)


class SecondAttempt(Onlooker):
    """Takes the evidence when the second attempt begins, and stops the run once all its ranks have started."""

    def __init__(self) -> None:
        super().__init__()
        self.evidence: Evidence | None = None
        self.stacks: dict[int, str] = {}
        self.placed: dict[int, str] = {}

    def event(self, event: Event) -> None:
        super().event(event)
        conductor = self.conductor
        if conductor is None or conductor.run.generation.number == 1:
            return
        if self.evidence is None:
            self.evidence, self.stacks = conductor.evidence(), dict(conductor.verdicts.stacks)
        if event.kind == "started" and event.rank is not None:
            self.placed[event.rank] = event.node
            if len(self.placed) == conductor.plan.world:
                conductor.stop("that is all")


@pytest.mark.ci
def test_a_second_attempt_has_its_own_ranks_and_evidence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The spare has the lost node's ranks; what the first attempt printed, and why it failed, says nothing any more.

    The other nodes are not dialled again, and the log of decisions says why the spare took over.
    """
    caplog.set_level("DEBUG", "aboard")
    second = SecondAttempt()
    lease = Lease(seconds=6.0, beat=0.5, grace=0.1)
    launched = _launch(
        tmp_path, second, {"s3": FakeNodeFaults(silent=5.0)}, lease, RecoverySettings(restarts=1, spares=("s11",))
    )
    assert launched.outcome is not None
    assert second.evidence is not None
    found = second.evidence
    assert [(end.code, bool(end.fix)) for end in found.run.recoveries] == [("run-node-gone", True)]
    assert (found.tails, found.snapshots, found.unheard, second.stacks) == ({}, {}, {}, {})
    assert set(found.last_lines.values()) == {()}
    assert {second.placed[rank] for rank in range(24, 32)} == {"s11"}
    assert second.placed[32] == "s4"
    assert {name: count for name, count in second.dials.items() if count > 1 and name != "s3"} == {}
    said = [record.getMessage() for record in caplog.records if record.name.startswith("aboard.engine.conductor")]
    assert any(each.startswith("at the end, cause 1: run-node-gone (block) on s3: ") for each in said)
    assert any(each.startswith("the failure run-node-gone is node; replace on s[0-10]: ") for each in said)


class StopBetween(Onlooker):
    """Stops the run when the second attempt is planned and has not begun."""

    def planned(self, conductor: Conductor) -> None:
        conductor.stop("that is all")

    def event(self, event: Event) -> None:
        super().event(event)
        if self.conductor is not None and event.kind == "started" and self.conductor.run.generation.number > 1:
            self.conductor.stop("it has started again")


def test_a_stop_between_two_attempts_is_not_lost(tmp_path: Path) -> None:
    """No rank of the second attempt starts, and the record says that the run was stopped."""
    stopped = StopBetween()
    killed = {"s3": FakeNodeFaults(kills={"1/24": 1.0})}
    launched = _launch(tmp_path, stopped, killed, recovery=RecoverySettings(restarts=1))
    assert launched.outcome is not None
    assert (launched.outcome.why.raw(), launched.outcome.code) == ("that is all", EXIT_INTERRUPTED)
    assert launched.progress is not None
    assert (launched.progress.generation, launched.progress.stopping) == (2, "that is all")


def find_whole_windows(run: RunDirectory) -> list[LatenessWindow]:
    return [window for window in read_lateness(run.lateness) if window.measured == ((0, NODES * RANKS - 1),)]


class FigureReader(Onlooker):
    """Stops the run once its record has a window in which all ranks were compared; the first one may lack some."""

    def __init__(self, run_folder: Path) -> None:
        super().__init__()
        self._folder = run_folder

    def tick(self, now: float) -> None:
        (run,) = Runs(self._folder).all()
        if self.conductor is not None and find_whole_windows(run):
            self.conductor.stop("that is all")


@pytest.mark.ci
def test_the_record_has_who_was_late_what_the_trainer_logged_and_what_nodes_used(tmp_path: Path) -> None:
    """One rank of 96 comes 50 ms late to every collective; all of this is of real frames through the real conductor."""
    _launch(tmp_path, FigureReader(tmp_path), {"s5": FakeNodeFaults(late={"43": 0.05})})
    (run,) = Runs(tmp_path).all()
    window = find_whole_windows(run)[0]
    assert max(window.late, key=lambda rank: window.late[rank].mean) == 43
    assert window.late[43].mean == pytest.approx(0.05, abs=0.01)
    samples = list(read_node_samples(run.samples))
    assert {sample.node for sample in samples} == {f"s{number}" for number in range(NODES)}
    assert all(sample.gpus == RANKS and sample.sent is not None for sample in samples)
    lines = list(read_metrics(run.metrics))
    assert [line.generation for line in lines[:1]] == [1]
    assert lines[0].figures["loss"] == 10.0
