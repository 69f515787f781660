"""A link over real programs on this machine: noise, silence, garbage, hang-ups, and no process left behind."""

import asyncio
import gc
import os
import signal
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from deadlines import slowness, wait_until, within

from aboard.agent import frames, process_tree
from aboard.core.cluster.node import Node
from aboard.core.text.shell_quoting import join_argv
from aboard.diagnoses import ProtocolError, TransportError, Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport import agent_bootstrap
from aboard.transport.agent_link import NOISE_LIMIT, AgentLink, open_link
from aboard.transport.local import LocalTransport
from aboard.transport.ssh import SshTransport, build_ssh_command
from aboard.transport.ssh_log import parse_phase
from aboard.transport.subprocess_stream import start_program
from aboard.transport.transport import ByteStream, OnPhase

HERE = Node(name="here")
AGENT = f"exec {join_argv(agent_bootstrap.build_argv(sys.executable))}"
# Reads the marker out of the bootstrap as a far end would, and then says what its argument evaluates to.
ACTOR = r"""
import ast, json, re, sys, time
sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
source = sys.stdin.buffer.readline()
marker = ast.literal_eval(re.search(rb"main\((b'.*?'),", source)[1].decode())
def frame(message):
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body
def say(*parts):
    for part in parts:
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
def wait():
    sys.stdin.buffer.read()
exec(sys.argv[1])
"""


class ShellWire(SshTransport):
    """A node whose login shell runs this script instead of our line."""

    def __init__(self, script: str) -> None:
        self._argv = ("sh", "-c", script)

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        return await start_program(self._argv, parse_phase)


class ActorWire(ShellWire):
    """A node that says what the given source says."""

    def __init__(self, source: str) -> None:
        super().__init__(f"exec {join_argv((sys.executable, '-ISc', ACTOR, source))}")


def _open(wire: ShellWire | LocalTransport, seconds: float = 5.0) -> str:
    """Opens a link and closes it; returns the noise before it."""

    async def story() -> str:
        link = await open_link(HERE, wire, seconds, lambda _phase: None)
        await link.close()
        return link.noise

    return asyncio.run(story())


def _reason(wire: ShellWire, seconds: float = 5.0) -> tuple[UnreachableReason, str]:
    with pytest.raises(Unreachable) as caught:
        _open(wire, seconds)
    return caught.value.reason, caught.value.seen


def _children() -> set[int]:
    return {pid for pid, parent in process_tree.read_parents().items() if parent == os.getpid()}


def test_what_a_shell_prints_at_login_is_skipped_and_kept_for_the_finding() -> None:
    """A greeting on stdout comes before the marker; what a terminal would obey is not in it."""
    assert _open(ShellWire(f"printf 'Welcome\\033[31m\\n to n1'; {AGENT}")) == "Welcome [31m  to n1"


def test_a_shell_that_prints_without_end_is_noise() -> None:
    """It is cut off after a bounded number of bytes."""
    reason, seen = _reason(ShellWire("while echo spam; do :; done"))
    assert reason is UnreachableReason.SHELL_NOISE
    assert int(seen.split()[2]) < 2 * NOISE_LIMIT


@pytest.mark.parametrize(
    ("script", "reason", "seen"),
    [
        ("exec python9", UnreachableReason.NO_PYTHON, "not found"),
        ("echo 'aboard: python 3.6.8' >&2; exit 1", UnreachableReason.OLD_PYTHON, "here: 3.6.8"),
        ("exit 7", UnreachableReason.GARBAGE, "here: the shell exited with code 7"),
        (
            "echo 'me@n1: Permission denied (publickey).' >&2; exit 255",
            UnreachableReason.KEY_REFUSED,
            "Permission denied",
        ),
        ("printf 'bad \\033]0;x\\007 \\377' >&2; exit 7", UnreachableReason.GARBAGE, r"here: bad \x1b]0;x\x07 �"),
    ],
    ids=["no python", "old python", "exit", "ssh", "escape codes"],
)
def test_an_end_before_the_agent_speaks_has_its_reason(script: str, reason: UnreachableReason, seen: str) -> None:
    """From the exit code and what was said, which is made fit for a screen."""
    found, said = _reason(ShellWire(script))
    assert found is reason
    assert seen in said


@pytest.mark.ci
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("say(marker)", UnreachableReason.LOST),
        ("say(marker, b'\\0\\0\\0\\5hello')", UnreachableReason.GARBAGE),
        ("say(marker, b'\\xff' * 9)", UnreachableReason.GARBAGE),
        ("say(marker, frame([1]))", UnreachableReason.GARBAGE),
        ("say(marker, frame({'hello': 2}))", UnreachableReason.WRONG_VERSION),
        ("say(marker, frame({'hello': eval('[' * 50 + ']' * 50)}))", UnreachableReason.WRONG_VERSION),
        (
            "say(marker, b'\\0\\0\\x07\\x6e' + b'{\"hello\":' + b'[' * 900 + b'\\x1b' * 100 + b']' * 900 )",
            UnreachableReason.GARBAGE,
        ),
        ("say(marker, frame({}))", UnreachableReason.WRONG_VERSION),
        ("wait()", UnreachableReason.TIMED_OUT),
        ("say(marker); wait()", UnreachableReason.TIMED_OUT),
    ],
    ids=["end", "no json", "huge", "list", "other version", "nested", "deep", "no version", "silent", "half"],
)
def test_a_far_end_that_is_no_agent_is_told_apart(source: str, reason: UnreachableReason) -> None:
    """Whatever it sends is a reason, within the time, and its program is gone afterwards."""
    before = _children()
    assert _reason(ActorWire(source), 0.5 * slowness())[0] is reason
    assert _children() <= before


def test_a_marker_that_comes_byte_by_byte_is_found() -> None:
    """Reads may cut it anywhere, also behind noise that looks like its beginning."""
    source = "for at in range(len(marker)): say(marker[at:at + 1]); time.sleep(0.001)\n"
    source = f"say(b'\\n<aboard \\n<')\n{source}say(frame({{'hello': 1}})); wait()"
    assert _open(ActorWire(source)) == "<aboard  <"


async def _linked(source: str) -> AgentLink:
    return await open_link(
        HERE,
        ActorWire(f"say(marker, frame({{'hello': 1}}))\nsys.stdin.buffer.read(4)\n{source}"),
        5,
        lambda _phase: None,
    )


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("", Unreachable),
        ("say(b'\\0\\0\\0\\2no'); wait()", ProtocolError),
        ("say(b'\\xff' * 9); wait()", ProtocolError),
    ],
    ids=["end", "no json", "huge"],
)
def test_a_question_ends_when_the_stream_does(source: str, error: type[TransportError]) -> None:
    """Whoever waits, and whoever asks later, is told at once instead of waiting for the time-out."""

    async def story() -> None:
        link = await _linked(source)
        try:
            for _ in range(2):
                with pytest.raises(error):
                    await link.ask("ping", 30)
            await asyncio.wait_for(link.wait_gone(), slowness())
        finally:
            await link.close()

    asyncio.run(story())


def test_answers_that_answer_nothing_harm_nobody() -> None:
    """Numbers that nobody asked with, of any type, are passed on; the right one is still paired."""
    replies = "[None, 'x', -1, 1.5, 10**30, [1], {}, 99]"
    source = f"for number in {replies}: say(frame({{'re': number}}))\nsay(frame({{'re': 1, 'ok': 2}})); wait()"

    async def story() -> None:
        link = await _linked(source)
        others: list[frames.Message] = []
        link.on_frame = others.append
        try:
            assert (await link.ask("ping", 5))["ok"] == 2
        finally:
            await link.close()
        assert len(others) == 8

    asyncio.run(story())


def test_a_far_end_that_takes_nothing_in_does_not_hold_the_question() -> None:
    """The agent is stopped and its pipe is full: the time-out covers the sending too."""

    async def story() -> None:
        link = await open_link(HERE, LocalTransport(), 5, lambda _phase: None)
        os.kill(link.hello["pid"], signal.SIGSTOP)
        with within(1), pytest.raises(Unreachable, match=r"did not reply within 0\.2 s"):
            await link.ask("run", 0.2, argv=["true"], env={"BIG": "x" * 2_000_000})
        os.kill(link.hello["pid"], signal.SIGCONT)
        await link.close()

    asyncio.run(story())


def test_time_in_which_we_were_held_up_ourselves_is_no_silence() -> None:
    """The answer lies there while the head is busy or stopped: it is read before the node is called silent."""

    async def story() -> None:
        link = await open_link(HERE, LocalTransport(), 5, lambda _phase: None)
        asking = asyncio.create_task(link.ask("ping", 0.2))
        await asyncio.sleep(0)
        # What a loop does that has no time for us.
        time.sleep(0.6)  # noqa: ASYNC251 - the very thing that is held against it
        assert "wall" in await asking
        await link.close()

    asyncio.run(story())


def test_a_link_may_be_closed_twice_and_from_two_places() -> None:
    """Both get the same ending, and the agent is gone."""

    async def story() -> int:
        link = await open_link(HERE, LocalTransport(), 5, lambda _phase: None)
        first, second = await asyncio.gather(link.close(), link.close())
        assert first == second == await link.close()
        assert first.exit_code == 0
        return int(link.hello["pid"])

    assert asyncio.run(story()) not in process_tree.read_parents()


@pytest.mark.parametrize("after", [0.0, 0.01, 0.1], ids=["at once", "soon", "while it waits"])
def test_a_cancelled_dial_leaves_no_process(after: float, tmp_path: Path) -> None:
    """Ctrl-C at any moment ends the program that carried the stream, also one that is deaf to a closed stdin."""
    before = _children()

    async def story() -> None:
        dial = asyncio.create_task(open_link(HERE, ShellWire("exec sleep 60"), 30, lambda _phase: None))
        await asyncio.sleep(after)
        dial.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dial

    with within(1.5):
        asyncio.run(story())
    wait_until(lambda: _children() <= before, 5)


def test_a_close_that_is_cancelled_still_ends_the_program() -> None:
    """A second Ctrl-C while we wait for ssh to leave: it is killed, not forgotten."""
    before = _children()

    async def story() -> None:
        stream = await ShellWire("trap '' TERM; exec sleep 60").open(HERE, lambda _phase: None)
        closing = asyncio.create_task(stream.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(story())
    wait_until(lambda: _children() <= before, 5)


def test_a_start_that_is_cancelled_at_any_moment_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Python would print 'Exception ignored in: BaseSubprocessTransport.__del__' after Ctrl-C; and the loop ends."""
    ignored: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: ignored.append(repr(unraisable)))
    before = _children()

    async def story(turns: int, more: int) -> None:
        starting = asyncio.create_task(start_program(["sleep", "60"], lambda _line: None))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        for _ in range(more):
            await asyncio.sleep(0)

    for turns, more in product((1, 3, 4, 6), (0, 3, 5)):
        with within(10):
            asyncio.run(story(turns, more))
    # Once for all of them: a collection takes longer than a story.
    gc.collect()
    assert ignored == []
    assert [str(each.message) for each in recwarn if issubclass(each.category, RuntimeWarning)] == []
    wait_until(lambda: _children() <= before, 5)


def test_a_line_of_stderr_without_an_end_is_bounded() -> None:
    """A hostile banner of megabytes is cut, and the lines that are kept are few."""

    async def story() -> None:
        script = (
            "head -c 3000000 /dev/zero | tr '\\0' x >&2; i=0; while [ $i -lt 500 ]; do echo $i >&2; i=$((i+1)); done"
        )
        stream = await ShellWire(script).open(HERE, lambda _phase: None)
        ending = await stream.close()
        assert len(ending.stderr) < 10_000
        assert ending.stderr.endswith("499")
        assert "" not in ending.phases

    asyncio.run(story())


def test_the_ssh_command_is_the_users_own_with_ours_on_top() -> None:
    """Nothing secret is on it, a name can't become an option, and the user's extras come first, so they win."""
    node = Node(name="n1", address="10.0.0.1", user="me", port=2222)
    argv = build_ssh_command(node, ("-F", "config"))
    assert argv[:3] == ("ssh", "-F", "config")
    assert argv[-7:-1] == ("-p", "2222", "-l", "me", "--", "10.0.0.1")
    assert argv[-1].startswith("exec python3 -ISc ")
    assert "BatchMode=yes" in argv
    assert "StrictHostKeyChecking=yes" in argv


def test_a_machine_that_can_start_nothing_more_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An ssh that can't be run here is a reason for that node, not the end of the whole check."""
    (tmp_path / "ssh").write_bytes(b"\x7fELF no program")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="cannot start ssh on this machine"):
        asyncio.run(SshTransport().open(HERE, lambda _phase: None))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(Unreachable, match="no ssh program"):
        asyncio.run(SshTransport().open(HERE, lambda _phase: None))
