"""The real keeper and guard on this machine, over the local wire: events, output, lease, and nothing left behind."""

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from aboard.agent import tree
from aboard.agent.children import SPOOL_LIMIT
from aboard.core.errors import AskError
from aboard.core.event import Event
from aboard.core.lease import Lease
from aboard.core.node import Node
from aboard.core.plan import Start
from aboard.wires.fleet import Fleet
from aboard.wires.hold import CREDIT, Hold, State
from aboard.wires.told import Piece

HERE = Node(name="here", local=True)
LONG = Lease(seconds=30.0, beat=1.0, grace=0.1)
SHORT = Lease(seconds=1.0, beat=0.1, grace=0.1)

# What training leaves around: a worker, a child in a session of its own, a double fork; all deaf to SIGTERM.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(300)"])
subprocess.Popen(["setsid", "sleep", "300"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(300)
    os._exit(0)
os.wait()
print("ready", flush=True)
time.sleep(300)
"""


class Run:
    """One run on this machine, and all that its hold tells."""

    def __init__(self, lease: Lease = LONG) -> None:
        self.id = f"test-{secrets.token_hex(6)}"
        self.key = secrets.token_hex(8)
        self.lease = lease
        self.events: list[Event] = []
        self.pieces: list[Piece] = []
        self.states: list[State] = []

    @property
    def place(self) -> Path:
        return Path(f"/tmp/aboard-{os.getuid()}") / self.id

    def hold(self, key: str | None = None) -> Hold:
        return Hold(
            HERE,
            Fleet(),
            run=self.id,
            key=key or self.key,
            lease=self.lease,
            on_event=self.events.append,
            on_piece=self.pieces.append,
            on_state=lambda state, _why: self.states.append(state),
        )

    def kinds(self, child: str = "") -> list[str]:
        return [event.kind for event in self.events if event.child == child]

    def output(self, child: str, stream: str = "stdout") -> bytes:
        return b"".join(piece.data for piece in self.pieces if (piece.child, piece.stream) == (child, stream))

    def finished(self, child: str) -> bool:
        return sum(piece.end for piece in self.pieces if piece.child == child) == 2

    def alive(self) -> set[int]:
        """What carries the run's id; a zombie has no environment."""
        return tree.marked(self.id)

    def keeper(self) -> int:
        child = next(event.data["pid"] for event in self.events if event.kind == "started")
        return tree.parents()[child]

    def gone(self) -> bool:
        return not self.alive() and not self.place.exists()


@pytest.fixture
def clean() -> Iterator[list[Run]]:
    """The runs of a test, each of which must have left neither process nor file."""
    runs: list[Run] = []
    yield runs
    for run in runs:
        _wait_for(run.gone, 5)


def _wait_for(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


async def _until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - polls a process, which has no event
            await asyncio.sleep(0.01)


def _held(run: Run, story: Callable[[Hold], Awaitable[None]]) -> None:
    """Tells a story with a held run, and ends the run afterwards."""

    async def tell() -> None:
        hold = run.hold()
        await hold.begin()
        try:
            await story(hold)
            if hold.state is State.HELD and not run.kinds():
                await hold.end(grace=0.0)
            await asyncio.wait_for(hold.wait_gone(), 10)
        finally:
            await hold.leave()

    asyncio.run(tell())


async def _cut(run: Run, hold: Hold) -> None:
    """Kills the bridge, and waits until another is attached."""
    held = run.states.count(State.HELD)
    assert hold._link is not None
    os.kill(hold._link.hello["pid"], signal.SIGKILL)
    await _until(lambda: run.states.count(State.HELD) > held)


def _holding(secret: str, run: Run) -> list[Path]:
    """The keeper's files and everybody's command lines in which the secret stands."""
    found = []
    for path in (*run.place.glob("*"), *Path("/proc").glob("[0-9]*/cmdline")):
        # A socket can't be read, and a process may end while we look.
        with suppress(OSError):
            if secret.encode() in path.read_bytes():
                found.append(path)
    return found


def _python(source: str) -> tuple[str, ...]:
    return (sys.executable, "-ISc", source)


def test_a_child_is_told_from_start_to_exit(clean: list[Run]) -> None:
    """Started, then exited with its code, each once; then the end, with nobody killed."""
    run = Run()
    clean.append(run)

    async def story(hold: Hold) -> None:
        await hold.start(Start(child="a", argv=("sh", "-c", "exit 3")))
        await hold.start(Start(child="a", argv=("sh", "-c", "exit 4")))
        await _until(lambda: "exited" in run.kinds("a"))

    _held(run, story)
    assert run.kinds("a") == ["started", "exited"]
    assert run.kinds() == ["ending", "ended"]
    assert [event.seq for event in run.events] == [1, 2, 3, 4]
    assert run.events[1].data["code"] == 3
    assert run.events[3].data == {"killed": 0, "stubborn": []}
    assert all(abs(event.at - time.time()) < 10 for event in run.events)


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (Start(child="a", argv=("/nowhere/prog",)), "can't start /nowhere/prog: No such file or directory"),
        (Start(child="a", argv=("true",), cwd="/nowhere"), "can't enter /nowhere: No such file or directory"),
        (Start(child="a", argv=()), "a command without a program"),
        (Start(child="a", argv=("true", "a\0b")), "can't start true: embedded null byte"),
        (Start(child="a", argv=("true",), env={"A=B": "c"}), "can't start true: illegal environment variable name"),
    ],
    ids=["no program", "no directory", "no argv", "nul in argv", "bad name"],
)
def test_what_can_not_start_says_why(clean: list[Run], start: Start, why: str) -> None:
    """A start that fails is one event with the reason, and the keeper lives on."""
    run = Run()
    clean.append(run)

    async def story(hold: Hold) -> None:
        await hold.start(start)
        await hold.start(Start(child="b", argv=("true",)))
        await _until(lambda: "exited" in run.kinds("b"))

    _held(run, story)
    assert run.kinds("a") == ["failed"]
    assert next(event for event in run.events if event.child == "a").data["why"] == why


def test_output_is_byte_exact_and_by_offset(clean: list[Run]) -> None:
    """Binary output, far more than the credit, arrives whole and in order, and its end is told."""
    run = Run()
    clean.append(run)
    size = 3 * CREDIT + 17

    async def story(hold: Hold) -> None:
        source = f"import os; b = bytes(range(256)) * {size // 256 + 1}; os.write(2, b'err')\n"
        source += f"v = memoryview(b)[:{size}]\nwhile v: v = v[os.write(1, v):]"
        await hold.start(Start(child="a", argv=_python(source)))
        await _until(lambda: run.finished("a"))

    _held(run, story)
    assert run.output("a") == (bytes(range(256)) * (size // 256 + 1))[:size]
    assert run.output("a", "stderr") == b"err"
    at = 0
    for piece in (piece for piece in run.pieces if piece.stream == "stdout"):
        assert piece.offset == at
        at += len(piece.data)


def test_output_that_was_not_sent_yet_is_not_lost_by_the_end(clean: list[Run]) -> None:
    """The end is acknowledged before the output has all been sent: the keeper stays until it has."""
    run = Run()
    clean.append(run)
    size = 8 * CREDIT

    async def story(hold: Hold) -> None:
        await hold.start(Start(child="a", argv=_python(f"import os; os.write(1, b'x' * {size})")))
        await _until(lambda: "exited" in run.kinds("a"))

    _held(run, story)
    assert len(run.output("a")) == size
    assert run.finished("a")


def test_a_flood_does_not_delay_a_beat(clean: list[Run]) -> None:
    """While a child prints as fast as it can, every beat is answered in time, and the hold stays held."""
    run = Run(Lease(seconds=30.0, beat=0.5, grace=0.0))
    clean.append(run)

    async def story(hold: Hold) -> None:
        source = "import os\nb = b'x' * 65536\nfor _ in range(1600): os.write(1, b)"
        await hold.start(Start(child="a", argv=_python(source)))
        await _until(lambda: "exited" in run.kinds("a"), 20)
        await _until(lambda: run.finished("a"), 20)

    _held(run, story)
    assert run.states == [State.HELD, State.GONE]
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
        await hold.start(Start(child="a", argv=_python(source)))
        await _until(lambda: run.events)
        await hold.leave()

    async def resume() -> None:
        run.pieces.clear()
        hold = run.hold()
        await hold.resume()
        await _until(lambda: run.finished("a"), 20)
        await hold.end()
        await asyncio.wait_for(hold.wait_gone(), 5)
        await hold.leave()

    asyncio.run(leave())
    _wait_for(lambda: not run.alive(), 20)
    asyncio.run(resume())
    output = run.output("a")
    dropped = sum(piece.dropped for piece in run.pieces)
    assert dropped + len(output) == 65536 * blocks
    assert 0 < dropped <= 65536 * blocks - SPOOL_LIMIT // 2
    assert output[:8] == b"%08d" % (dropped // 65536)
    assert output[-8:] == b"%08d" % (blocks - 1)


def test_a_secret_is_nowhere_but_in_its_process(clean: list[Run]) -> None:
    """It is masked in the output and in the keeper's files, also when it is printed in two halves."""
    run = Run()
    clean.append(run)
    secret = secrets.token_hex(16)
    found: list[Path] = []

    async def story(hold: Hold) -> None:
        source = "import os, time\nt = os.environ['TOKEN'].encode()\nos.write(1, b'<' + t[:9])\ntime.sleep(0.05)\n"
        source += "os.write(1, t[9:] + b'>')\ntime.sleep(300)"
        start = Start(child="a", argv=_python(source), env={"TOKEN": secret}, secrets=("TOKEN",))
        assert secret not in repr(start)
        await hold.start(start)
        await _until(lambda: run.output("a").endswith(b">"))
        found.extend(_holding(secret, run))

    _held(run, story)
    assert run.output("a") == b"<[secret]>"
    assert not found
    assert secret not in repr(run.events)


def test_the_end_ends_sessions_and_double_forks_too(clean: list[Run]) -> None:
    """A `setsid` child and a double fork, all deaf to SIGTERM, are gone when the end is told."""
    run = Run()
    clean.append(run)

    async def story(hold: Hold) -> None:
        await hold.start(Start(child="a", argv=_python(FAMILY)))
        await _until(lambda: b"ready" in run.output("a"))
        assert len(run.alive()) == 4
        await hold.end(grace=0.1)
        await _until(lambda: "ended" in run.kinds())
        assert not run.alive()

    _held(run, story)
    assert run.events[-1].data["stubborn"] == []
    assert run.events[-1].data["killed"] >= 1


@pytest.mark.parametrize("victim", ["keeper", "guard"])
def test_a_killed_keeper_or_guard_takes_the_children_along(clean: list[Run], victim: str) -> None:
    """SIGKILL of the one, and the other ends every child within two seconds, whatever they ignore."""
    run = Run()
    clean.append(run)

    async def story(hold: Hold) -> None:
        await hold.start(Start(child="a", argv=_python(FAMILY)))
        await _until(lambda: b"ready" in run.output("a"))
        keeper = run.keeper()
        os.kill(keeper if victim == "keeper" else tree.parents()[keeper], signal.SIGKILL)
        await _until(lambda: not run.alive(), 2)
        await asyncio.wait_for(hold.wait_gone(), 5)

    _held(run, story)
    if victim == "keeper":
        assert run.states[-1] is State.GONE
        assert State.CUT not in run.states


def test_sigterm_to_the_keeper_is_an_orderly_end(clean: list[Run]) -> None:
    """It is told why it ends, children get their grace, and the keeper stays until that is heard."""
    run = Run()
    clean.append(run)

    async def story(hold: Hold) -> None:
        await hold.start(Start(child="a", argv=("sleep", "300")))
        await _until(lambda: run.events)
        os.kill(run.keeper(), signal.SIGTERM)
        await asyncio.wait_for(hold.wait_gone(), 5)

    _held(run, story)
    assert run.kinds() == ["ending", "ended"]
    assert run.events[1].data == {"why": "the keeper got a signal"}
    assert run.events[2].data == {"code": -signal.SIGTERM}


def test_a_stopped_keeper_is_woken(clean: list[Run]) -> None:
    """A keeper that is stopped could not end its children past the lease; its guard sends it on."""
    run = Run()
    clean.append(run)

    async def story(hold: Hold) -> None:
        await hold.start(Start(child="a", argv=("sleep", "300")))
        await _until(lambda: run.events)
        os.kill(run.keeper(), signal.SIGSTOP)
        await hold.start(Start(child="b", argv=("true",)))
        await _until(lambda: "exited" in run.kinds("b"), 3)

    _held(run, story)


def test_a_wrong_key_is_refused_and_disturbs_nobody(clean: list[Run]) -> None:
    """Whoever hasn't the run's key is sent away; the bridge that is attached stays so."""
    run = Run()
    clean.append(run)

    async def story(hold: Hold) -> None:
        with pytest.raises(AskError, match="does not fit"):
            await run.hold(key="other").resume()
        await hold.start(Start(child="a", argv=("true",)))
        await _until(lambda: "exited" in run.kinds("a"))

    _held(run, story)
    assert run.states == [State.HELD, State.GONE]


def test_a_run_is_held_once(clean: list[Run]) -> None:
    """A second keeper for the same run is refused; the first one is not harmed."""
    run = Run()
    clean.append(run)

    async def story(hold: Hold) -> None:
        with pytest.raises(AskError, match="FileExistsError"):
            await run.hold().begin()
        await hold.start(Start(child="a", argv=("true",)))

    _held(run, story)


def test_a_keeper_that_can_not_start_says_why_and_leaves_nothing() -> None:
    """The reason comes over the wire, since nobody would look for a log on the node."""
    run = Run()
    run.id = "x" * 100
    with pytest.raises(AskError, match="not a run id"):
        asyncio.run(run.hold().begin())
    assert not run.place.exists()


def test_attaching_to_nothing_says_so() -> None:
    """A run that nobody holds here is named."""
    run = Run()
    with pytest.raises(AskError, match="no keeper holds run"):
        asyncio.run(run.hold().resume())
    assert not run.place.exists()


def test_a_new_head_gets_all_that_was_not_acknowledged(clean: list[Run]) -> None:
    """One head leaves, another resumes: output from its first byte, events that nobody heard, nothing twice."""
    run = Run()
    clean.append(run)
    first = Run()
    first.id, first.key = run.id, run.key

    async def leave() -> None:
        hold = first.hold()
        await hold.begin()
        source = "import os, sys, time\nos.write(1, b'before ')\n"
        source += "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\nos.write(1, b'after')"
        await hold.start(Start(child="a", argv=(*_python(source), str(first.place / "go"))))
        await _until(lambda: first.output("a") == b"before ")
        await hold.leave()

    asyncio.run(leave())
    (run.place / "go").touch()
    _wait_for(lambda: not run.alive(), 5)

    async def resume() -> None:
        hold = run.hold()
        await hold.resume()
        await _until(lambda: run.finished("a"))
        await hold.end()
        await asyncio.wait_for(hold.wait_gone(), 5)
        await hold.leave()

    asyncio.run(resume())
    assert first.kinds("a") == ["started"]
    assert run.kinds("a") == ["exited"]
    assert run.output("a") == b"before after"


def test_a_cut_is_mended_and_nothing_is_missing(clean: list[Run]) -> None:
    """The bridge is killed under a running child: the hold attaches again, with every event and byte once."""
    run = Run()
    clean.append(run)

    async def story(hold: Hold) -> None:
        source = "import os\nfor n in range(60000): os.write(1, b'%07d\\n' % n)"
        await hold.start(Start(child="a", argv=_python(source)))
        for times in range(1, 3):
            await _until(lambda: len(run.output("a")) > 50_000 * times)  # noqa: B023 - called at once
            await _cut(run, hold)
        await _until(lambda: run.finished("a"), 20)

    _held(run, story)
    assert run.kinds("a") == ["started", "exited"]
    assert run.output("a") == b"".join(b"%07d\n" % n for n in range(60000))
    assert run.states.count(State.CUT) >= 2


def test_many_children_that_ended_are_told_to_a_new_bridge(clean: list[Run]) -> None:
    """Hundreds of outputs end at once when a bridge attaches: each is sent in its turn, not one inside the other."""
    run = Run()
    clean.append(run)

    async def story(hold: Hold) -> None:
        await asyncio.gather(*(hold.start(Start(child=f"c{n}", argv=("true",))) for n in range(150)))
        await _until(lambda: sum(event.kind == "exited" for event in run.events) == 150)
        await _cut(run, hold)
        await hold.start(Start(child="last", argv=("true",)))
        await _until(lambda: run.finished("last"))

    _held(run, story)
    assert sum(piece.end for piece in run.pieces) == 2 * 151


def test_the_lease_ends_all_and_not_before(clean: list[Run]) -> None:
    """Left alone, children live for the whole lease, and are gone when it is over."""
    run = Run(SHORT)
    clean.append(run)

    async def leave() -> float:
        hold = run.hold()
        await hold.begin()
        await hold.start(Start(child="a", argv=_python(FAMILY)))
        await _until(lambda: b"ready" in run.output("a"))
        await hold.leave()
        return time.monotonic()

    left = asyncio.run(leave())
    while time.monotonic() < left + SHORT.seconds - 0.3:
        assert len(run.alive()) == 4
        time.sleep(0.02)
    _wait_for(lambda: not run.alive(), 0.3 + SHORT.grace + 1.5)
    assert time.monotonic() - left >= SHORT.seconds - 0.3


def test_a_signal_reaches_the_whole_group(clean: list[Run]) -> None:
    """As a terminal would: the child and what it runs get it; a signal for an unknown child is nobody's."""
    run = Run()
    clean.append(run)
    source = "import subprocess\np = subprocess.Popen(['sleep', '300'])\nprint('ready', flush=True)\np.wait()"

    async def story(hold: Hold) -> None:
        await hold.start(Start(child="a", argv=_python(source)))
        await _until(lambda: b"ready" in run.output("a"))
        assert len(run.alive()) == 2
        await hold.signal("nobody", signal.SIGTERM)
        await hold.signal("a", signal.SIGTERM)
        await _until(lambda: "exited" in run.kinds("a") and not run.alive())

    _held(run, story)
    assert run.events[1].data == {"code": -signal.SIGTERM}


def test_children_get_usual_signals_and_no_descriptor_of_ours(clean: list[Run]) -> None:
    """SIGPIPE kills again as every program expects, nothing is blocked, and only the three standard files are open."""
    run = Run()
    clean.append(run)
    look = "ls /proc/self/fd; grep -E 'Sig(Blk|Ign)' /proc/self/status"

    async def story(hold: Hold) -> None:
        await hold.start(Start(child="a", argv=("sh", "-c", look)))
        await _until(lambda: run.finished("a"))

    _held(run, story)
    lines = run.output("a").decode().split()
    assert lines == ["0", "1", "2", "3", "SigBlk:", "0" * 16, "SigIgn:", "0" * 16]


def test_frames_of_the_wrong_shape_are_answered_and_harm_nobody(clean: list[Run]) -> None:
    """Whatever a frame holds, the keeper answers with an error and keeps its children."""
    run = Run()
    clean.append(run)

    async def story(hold: Hold) -> None:
        await hold.start(Start(child="a", argv=("sleep", "300")))
        link = hold._link
        assert link is not None
        for op, fields in (
            ("start", {"child": "b"}),
            ("start", {"child": "b", "argv": 5}),
            ("start", {"child": "b", "argv": ["true"], "env": [1, 2]}),
            ("signal", {"child": "a", "signal": 10**30}),
            ("signal", {"child": "a", "signal": "x"}),
            ("ack", {"seq": float("inf")}),
            ("credit", {"bytes": None}),
            ("lease", {"lease": "long"}),
            ("end", {"grace": {}}),
            ("dance", {}),
        ):
            with pytest.raises(AskError):
                await link.ask(op, 5, **fields)
        await hold.start(Start(child="c", argv=("true",)))
        await _until(lambda: "exited" in run.kinds("c"))
        assert run.kinds("a") == ["started"]

    _held(run, story)
