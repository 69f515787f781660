"""How a run ends on this machine, whoever is killed: all that it started is gone, and not before its time."""

import asyncio
import os
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest
from deadlines import slowness, until, wait_until
from made_events import list_fields
from supervisor_runs import FAMILY, SHORT, Run, held, python

from aboard.agent import process_tree
from aboard.agent.supervisor.temporary_directories import remove_dead_directories
from aboard.core.plan.plan import Start
from aboard.transport.node_session import CREDIT, NodeSession, SessionState


@pytest.mark.ci
def test_output_that_was_not_sent_yet_is_not_lost_by_the_end(clean: list[Run]) -> None:
    """The end is acknowledged before the output has all been sent: the supervisor stays until it has."""
    run = Run()
    clean.append(run)
    size = 8 * CREDIT

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=python(f"import os; os.write(1, b'x' * {size})")))
        await until(lambda: "exited" in run.kinds("a"))

    held(run, story)
    assert len(run.output("a")) == size
    assert run.finished("a")


@pytest.mark.ci
def test_the_end_ends_sessions_and_double_forks_too(clean: list[Run]) -> None:
    """A `setsid` child and a double fork, all deaf to SIGTERM, are gone when the end is told."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=python(FAMILY)))
        await until(lambda: b"ready" in run.output("a"))
        assert len(run.alive()) == 4
        await hold.end(grace=0.1)
        await until(lambda: "ended" in run.kinds())
        assert not run.alive()

    held(run, story)
    assert list_fields(run.events[-1])["stubborn"] == ()
    assert list_fields(run.events[-1])["killed"] >= 1


@pytest.mark.ci
@pytest.mark.parametrize("victim", ["supervisor", "guard"])
def test_a_killed_supervisor_or_guard_takes_the_children_along(clean: list[Run], victim: str) -> None:
    """SIGKILL of the one, and the other ends every child within two seconds, whatever they ignore."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=python(FAMILY)))
        await until(lambda: b"ready" in run.output("a"))
        supervisor = run.supervisor()
        os.kill(supervisor if victim == "supervisor" else process_tree.read_parents()[supervisor], signal.SIGKILL)
        await until(lambda: not run.alive(), 2)
        await asyncio.wait_for(hold.wait_gone(), 5 * slowness())

    held(run, story)
    if victim == "supervisor":
        assert run.states[-1] is SessionState.LOST
        assert SessionState.DISCONNECTED not in run.states


@pytest.mark.ci
def test_sigterm_to_the_supervisor_is_an_orderly_end(clean: list[Run]) -> None:
    """It is told why it ends, children get their grace, and the supervisor stays until that is heard."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=("sleep", "300")))
        await until(lambda: run.events)
        os.kill(run.supervisor(), signal.SIGTERM)
        await asyncio.wait_for(hold.wait_gone(), 5 * slowness())

    held(run, story)
    assert run.kinds() == ["ending", "ended"]
    assert list_fields(run.events[1]) == {"why": "the supervisor received SIGTERM", "cause": "signal"}
    assert list_fields(run.events[2]) == {"code": -signal.SIGTERM}


@pytest.mark.ci
def test_a_stopped_supervisor_is_woken(clean: list[Run]) -> None:
    """A supervisor that is stopped could not end its children past the lease; its guard sends it on."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=("sleep", "300")))
        await until(lambda: run.events)
        os.kill(run.supervisor(), signal.SIGSTOP)
        await hold.start(Start(child="b", argv=("true",)))
        await until(lambda: "exited" in run.kinds("b"), 3)
        await until(lambda: "continued" in run.kinds(), 3)
        assert [list_fields(event) for event in run.events if event.kind == "continued"] == [{"process": "supervisor"}]

    held(run, story)


@pytest.mark.ci
def test_a_stopped_guard_is_woken(clean: list[Run]) -> None:
    """A stopped guard could not clean up after a supervisor that is killed; the supervisor sends it on, and says so."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=("sleep", "300")))
        await until(lambda: run.events)
        os.kill(process_tree.read_parents()[run.supervisor()], signal.SIGSTOP)
        await until(lambda: "continued" in run.kinds(), 5)
        assert list_fields(run.events[-1]) == {"process": "guard"}

    held(run, story)


@pytest.mark.ci
@pytest.mark.parametrize("first", [signal.SIGKILL, signal.SIGSTOP])
def test_the_bridge_outlives_supervisor_and_guard(clean: list[Run], first: signal.Signals) -> None:
    """Both are gone, or the guard is stopped: the bridge ends all children, and tells who was killed by what."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=python(FAMILY)))
        await until(lambda: b"ready" in run.output("a"))
        supervisor = run.supervisor()
        # Stopped first: a supervisor that sees its guard die ends by itself.
        os.kill(supervisor, signal.SIGSTOP)
        os.kill(process_tree.read_parents()[supervisor], first)
        os.kill(supervisor, signal.SIGKILL)
        await asyncio.wait_for(hold.wait_gone(), 10 * slowness())
        assert hold.lost_agents.pop("killed") >= (1 if first == signal.SIGKILL else 0)
        assert hold.lost_agents.pop("ago") >= 0
        guard = {"guard": signal.SIGKILL} if first == signal.SIGKILL else {}
        assert hold.lost_agents == {"supervisor": signal.SIGKILL, **guard}
        assert run.gone()

    held(run, story)


@pytest.mark.ci
def test_the_next_bridge_ends_what_is_left_without_supervisor_guard_and_bridge(clean: list[Run]) -> None:
    """It is no ancestor of the run's processes, and finds them by run id and mark."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=python(FAMILY)))
        await until(lambda: b"ready" in run.output("a"))
        supervisor = run.supervisor()
        assert hold._link is not None
        for pid in (hold._link.hello["pid"], process_tree.read_parents()[supervisor], supervisor):
            os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(hold.wait_gone(), 10 * slowness())
        assert hold.lost_agents.pop("killed") >= 1
        assert hold.lost_agents.pop("ago") == 0
        assert hold.lost_agents == {"supervisor": 0, "guard": 0}
        assert run.gone()

    held(run, story)


@pytest.mark.ci
def test_the_lease_ends_all_and_not_before(clean: list[Run]) -> None:
    """Left alone, children live for the whole lease, and are gone when it is over."""
    run = Run(SHORT)
    clean.append(run)

    async def leave() -> float:
        hold = run.hold()
        await hold.begin()
        await hold.start(Start(child="a", argv=python(FAMILY)))
        await until(lambda: b"ready" in run.output("a"))
        await hold.leave()
        return time.monotonic()

    left = asyncio.run(leave())
    while time.monotonic() < left + SHORT.seconds - 0.3:
        assert len(run.alive()) == 4
        time.sleep(0.02)
    wait_until(lambda: not run.alive(), 0.3 + SHORT.grace + 1.5)
    assert time.monotonic() - left >= SHORT.seconds - 0.3


LISTENER = """
import time
from multiprocessing.connection import Listener
from multiprocessing.util import get_temp_dir
listener = Listener(family="AF_UNIX")
print(get_temp_dir(), flush=True)
time.sleep(300)
"""


@pytest.mark.ci
def test_the_directories_of_killed_workers_are_gone_and_those_in_use_stay(clean: list[Run]) -> None:
    """A killed process can't remove /tmp/pymp-…; another one of the same user, begun during the run, keeps its own."""
    run = Run()
    clean.append(run)
    made = []

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=python(LISTENER)))
        await until(lambda: run.output("a").endswith(b"\n"))
        made.append(Path(run.output("a").decode().strip()))
        assert made[0].name.startswith("pymp-")
        own = Path(tempfile.mkdtemp(prefix="pymp-", dir=made[0].parent))
        with socket.socket(socket.AF_UNIX) as used:
            used.bind(str(own / "listener-1"))
            await hold.end(grace=0.1)
            await until(lambda: not run.place.exists())
            assert (own / "listener-1").exists()
        shutil.rmtree(own)

    held(run, story)
    assert not made[0].exists()


def test_of_other_directories_nothing_is_removed(tmp_path: Path) -> None:
    """An older one, one with a file, an empty one that a process may be about to use, and a link."""
    run, place = tmp_path / "run", tmp_path / "tmp"
    run.mkdir()
    for name in ("old", "file", "empty", "dead"):
        (place / f"pymp-{name}").mkdir(parents=True)
    bind(place / "pymp-old/listener-1")
    bind(run / "supervisor.sock")
    bind(place / "pymp-file/listener-1")
    (place / "pymp-file/notes").write_text("mine")
    bind(place / "pymp-dead/listener-1")
    (place / "pymp-link").symlink_to(place / "pymp-dead")
    remove_dead_directories(str(run), [str(place)])
    assert {path.name for path in place.iterdir()} == {"pymp-old", "pymp-file", "pymp-empty", "pymp-link"}


def bind(path: Path) -> None:
    """A socket of a process that is gone, a moment later than the one before."""
    before = time.time_ns()
    while path.parent.stat().st_ctime_ns < before:
        with socket.socket(socket.AF_UNIX) as bound:
            path.unlink(missing_ok=True)
            bound.bind(str(path))
