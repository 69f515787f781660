"""The real supervisor on this machine, over the local wire: children, their output and their secrets."""

import asyncio
import secrets
import signal
import time
from pathlib import Path

import pytest
from deadlines import slowness, until, wait_until
from made_events import list_fields
from supervisor_runs import Run, held, holding, python

from aboard.agent.supervisor.rank_processes import SPOOL_LIMIT
from aboard.core.plan.plan import Start
from aboard.core.run.lease import Lease
from aboard.transport.node_session import CREDIT, NodeSession, SessionState

pytestmark = pytest.mark.ci  # each test starts a supervisor and its ranks


def test_a_child_is_told_from_start_to_exit(clean: list[Run]) -> None:
    """Started, then exited with its code, each once; then the end, with nobody killed."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=("sh", "-c", "exit 3")))
        await hold.start(Start(child="a", argv=("sh", "-c", "exit 4")))
        await until(lambda: "exited" in run.kinds("a"))

    held(run, story)
    assert run.kinds("a") == ["started", "exited"]
    assert run.kinds() == ["ending", "ended"]
    assert [event.seq for event in run.events] == [1, 2, 3, 4]
    assert list_fields(run.events[1])["code"] == 3
    assert list_fields(run.events[3]) == {"killed": 0, "stubborn": ()}
    assert all(abs(event.at - time.time()) < 10 * slowness() for event in run.events)


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (Start(child="a", argv=("/nowhere/prog",)), "can't start /nowhere/prog: No such file or directory"),
        (Start(child="a", argv=("true",), cwd="/nowhere"), "can't enter /nowhere: No such file or directory"),
        (Start(child="a", argv=()), "an empty command"),
        (Start(child="a", argv=("true", "a\0b")), "can't start true: embedded null byte"),
        (Start(child="a", argv=("true",), env={"A=B": "c"}), "can't start true: illegal environment variable name"),
    ],
    ids=["no program", "no directory", "no argv", "nul in argv", "bad name"],
)
def test_what_can_not_start_says_why(clean: list[Run], start: Start, why: str) -> None:
    """A start that fails is one event with the reason, and the supervisor lives on."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(start)
        await hold.start(Start(child="b", argv=("true",)))
        await until(lambda: "exited" in run.kinds("b"))

    held(run, story)
    assert run.kinds("a") == ["failed"]
    assert list_fields(next(event for event in run.events if event.child == "a"))["why"] == why


def test_output_is_byte_exact_and_by_offset(clean: list[Run]) -> None:
    """Binary output, far more than the credit, arrives whole and in order, and its end is told."""
    run = Run()
    clean.append(run)
    size = 3 * CREDIT + 17

    async def story(hold: NodeSession) -> None:
        source = f"import os; b = bytes(range(256)) * {size // 256 + 1}; os.write(2, b'err')\n"
        source += f"v = memoryview(b)[:{size}]\nwhile v: v = v[os.write(1, v):]"
        await hold.start(Start(child="a", argv=python(source)))
        await until(lambda: run.finished("a"))

    held(run, story)
    assert run.output("a") == (bytes(range(256)) * (size // 256 + 1))[:size]
    assert run.output("a", "stderr") == b"err"
    at = 0
    for piece in (piece for piece in run.pieces if piece.stream == "stdout"):
        assert piece.offset == at
        at += len(piece.data)


def test_a_flood_does_not_delay_a_beat(clean: list[Run]) -> None:
    """While a child prints as fast as it can, every beat is answered in time, and the hold stays held."""
    run = Run(Lease(seconds=30.0, beat=0.5, grace=0.0))
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        source = "import os\nb = b'x' * 65536\nfor _ in range(1600): os.write(1, b)"
        await hold.start(Start(child="a", argv=python(source)))
        await until(lambda: "exited" in run.kinds("a"), 20)
        await until(lambda: run.finished("a"), 20)

    held(run, story)
    assert run.states == [SessionState.CONNECTED, SessionState.LOST]
    dropped = sum(piece.dropped for piece in run.pieces)
    assert len(run.output("a")) + dropped == 1600 * 65536


def test_what_the_spool_drops_is_counted(clean: list[Run]) -> None:
    """Nobody listens while a child prints more than the spool keeps: its end is there, and the hole is known."""
    run = Run()
    clean.append(run)
    blocks = 1200
    source = f"import os\nfor n in range({blocks}): os.write(1, b'%08d' % n * 8192)"

    async def leave() -> None:
        hold = run.hold()
        await hold.begin()
        await hold.start(Start(child="a", argv=python(source)))
        await until(lambda: run.events)
        await hold.leave()

    async def resume() -> None:
        run.pieces.clear()
        hold = run.hold()
        await hold.resume()
        await until(lambda: run.finished("a"), 20)
        await hold.end()
        await asyncio.wait_for(hold.wait_gone(), 5 * slowness())
        await hold.leave()

    asyncio.run(leave())
    wait_until(lambda: not run.alive(), 20)
    asyncio.run(resume())
    output = run.output("a")
    dropped = sum(piece.dropped for piece in run.pieces)
    assert dropped + len(output) == 65536 * blocks
    assert 0 < dropped <= 65536 * blocks - SPOOL_LIMIT // 2
    assert output[:8] == b"%08d" % (dropped // 65536)
    assert output[-8:] == b"%08d" % (blocks - 1)


def test_a_secret_is_nowhere_but_in_its_process(clean: list[Run]) -> None:
    """It is masked in the output and in the supervisor's files, also when it is printed in two halves."""
    run = Run()
    clean.append(run)
    secret = secrets.token_hex(16)
    found: list[Path] = []

    async def story(hold: NodeSession) -> None:
        source = "import os, time\nt = os.environ['TOKEN'].encode()\nos.write(1, b'<' + t[:9])\ntime.sleep(0.05)\n"
        source += "os.write(1, t[9:] + b'>')\ntime.sleep(300)"
        start = Start(child="a", argv=python(source), env={"TOKEN": secret}, secrets=("TOKEN",))
        assert secret not in repr(start)
        await hold.start(start)
        await until(lambda: run.output("a").endswith(b">"))
        found.extend(holding(secret, run))

    held(run, story)
    assert run.output("a") == b"<[secret]>"
    assert not found
    assert secret not in repr(run.events)


def test_a_signal_reaches_the_whole_group(clean: list[Run]) -> None:
    """As a terminal would: the child and what it runs get it; a signal for an unknown child is nobody's."""
    run = Run()
    clean.append(run)
    source = "import subprocess\np = subprocess.Popen(['sleep', '300'])\nprint('ready', flush=True)\np.wait()"

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=python(source)))
        await until(lambda: b"ready" in run.output("a"))
        assert len(run.alive()) == 2
        await hold.signal("nobody", signal.SIGTERM)
        await hold.signal("a", signal.SIGTERM)
        await until(lambda: "exited" in run.kinds("a") and not run.alive())

    held(run, story)
    assert list_fields(run.events[1]) == {"code": -signal.SIGTERM}


def test_children_get_usual_signals_and_no_descriptor_of_ours(clean: list[Run]) -> None:
    """SIGPIPE kills again as every program expects, nothing is blocked, and only the three standard files are open."""
    run = Run()
    clean.append(run)
    look = "ls /proc/self/fd; grep -E 'Sig(Blk|Ign)' /proc/self/status"

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=("sh", "-c", look)))
        await until(lambda: run.finished("a"))

    held(run, story)
    lines = run.output("a").decode().split()
    assert lines == ["0", "1", "2", "3", "SigBlk:", "0" * 16, "SigIgn:", "0" * 16]
