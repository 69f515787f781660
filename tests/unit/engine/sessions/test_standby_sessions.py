"""A run on this machine whose rank is killed: the real conductor, supervisors and processes, without torch."""

import asyncio
import io
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from zipfile import ZipFile

import pytest
from deadlines import wait_until
from made_events import list_fields

from aboard.agent import process_tree
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.events import Event
from aboard.core.run.recovery.recovery_policy import RecoverySettings
from aboard.engine.check.check_observer import NullCheckObserver
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.launch_run import launch
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.record.run_record import Record
from aboard.record.runs import Runs

pytestmark = pytest.mark.ci  # each test starts supervisors and their ranks

# A trainer in all that concerns standbys: rank 1 is killed in its first generation when the file is there.
JOB = """
import json, os, pathlib, signal, sys, time
if os.environ.pop("ABOARD_STANDBY", None) is not None:
    os.write(0, b"ready\\n")
    given = json.loads(os.fdopen(os.dup(0)).readline() or sys.exit(0))
    os.environ.update(given["env"])
    sys.modules["aboard_beacon"].armed.become_rank(given["ABOARD_CHILD"], given.get("ABOARD_AWAIT", ""))
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        sys.modules["aboard_beacon"].armed.mention('"step":1')
        if os.environ["RANK"] == "1" and os.path.exists(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
"""


class Watcher:
    """Collects the run's events; once all standbys wait, it acts, and lets rank 1 be killed."""

    def __init__(self, go: Path, act: Callable[[str], None]) -> None:
        self.events: list[Event] = []
        self._go = go
        self._act = act
        self._run = ""

    def began(self, conductor: Conductor) -> None:
        self._run = conductor.plan.run

    def event(self, event: Event) -> None:
        self.events.append(event)
        if event.kind == "standbys" and not self._go.exists():
            self._act(f"{self._run}.2")
            self._go.touch()

    def tick(self, now: float) -> None:
        pass


def launch_job(folder: Path, act: Callable[[str], None], *, standby: bool = True) -> tuple[Watcher, str]:
    """Runs the job with one restart; returns what was seen, and the run's name."""
    code = io.BytesIO()
    with ZipFile(code, "w") as archive:
        archive.writestr("job.py", JOB)
    go = folder / "go"
    program = Program(kind=ProgramKind.MODULE, target="job", args=(str(go),), options=("-P",))
    node = Node(name="here", transport=TransportKind.LOCAL, slots=2, python=sys.executable)
    spec = LaunchSpec(
        cluster=Cluster(nodes=(node,)),
        request=LaunchRequest(program=program, code=code.getvalue()),
        recovery=RecoverySettings(restarts=1, standby=standby),
    )
    run = Runs(folder).create(datetime.now(UTC), Random(os.getpid()))  # noqa: S311 - a name, no secret
    record, watcher = Record.open(run, ranks=2), Watcher(go, act)
    if not standby:
        go.touch()
    try:
        launched = asyncio.run(launch(spec, record, check_observer=NullCheckObserver(), run_observer=watcher))
    finally:
        record.close()
    assert launched.outcome is not None
    assert launched.outcome.code == 0, launched.outcome
    return watcher, run.id


def list_starts(watcher: Watcher) -> list[bool]:
    return [list_fields(event).get("standby", False) for event in watcher.events if event.kind == "started"]


def are_gone(run: str) -> bool:
    return not any(process_tree.find_run_processes(name) for name in (run, *(f"{run}.{n}" for n in range(2, 5))))


def test_standbys_are_the_ranks_of_the_next_generation(tmp_path: Path) -> None:
    """And nothing of any generation is left."""
    watcher, run = launch_job(tmp_path, lambda _run: None)
    assert list_starts(watcher) == [False, False, True, True]
    assert [list_fields(event)["number"] for event in watcher.events if event.kind == "generation"] == [1, 2]
    wait_until(lambda: are_gone(run), 5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_standby_that_was_killed_or_stopped_is_replaced_by_a_new_rank(tmp_path: Path, number: int) -> None:
    """The other one is used."""

    def act(run: str) -> None:
        standby = next(pid for pid in process_tree.find_run_processes(run) if b"job" in read_command(pid))
        os.kill(standby, number)
        wait_until(lambda: process_tree.read_state(standby) in ("", "T"), 5)

    watcher, run = launch_job(tmp_path, act)
    assert sorted(list_starts(watcher)) == [False, False, False, True]
    wait_until(lambda: are_gone(run), 5)


def test_a_lost_supervisor_with_standbys_costs_only_these(tmp_path: Path) -> None:
    """The node's next supervisor has another name, since the lost one may still hold its own."""

    def act(run: str) -> None:
        standby = next(pid for pid in process_tree.find_run_processes(run) if b"job" in read_command(pid))
        supervisor = process_tree.read_parents()[standby]
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: not process_tree.read_state(supervisor), 5)

    watcher, run = launch_job(tmp_path, act)
    assert list_starts(watcher) == [False] * 4
    assert not [event for event in watcher.events if event.kind == "gone"]
    wait_until(lambda: are_gone(run), 5)


def test_without_standbys_nothing_waits(tmp_path: Path) -> None:
    """As the setting says."""
    watcher, _run = launch_job(tmp_path, lambda _run: None, standby=False)
    assert list_starts(watcher) == [False] * 4
    assert not [event for event in watcher.events if event.kind == "standbys"]


def read_command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
