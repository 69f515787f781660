"""The bridge by itself: it ends with its wire, with a signal, and with a head that was cut off without a word."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from deadlines import slowness

from aboard.agent import frames
from aboard.transport import agent_bootstrap


@contextmanager
def _bridge(silence: float = 30.0) -> Iterator[subprocess.Popen[bytes]]:
    """A bridge on pipes, as sshd would start it, that has said its marker and hello."""
    start = agent_bootstrap.build_bootstrap(silence)
    argv = agent_bootstrap.build_argv(sys.executable)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(start.stdin)
        process.stdin.flush()
        assert process.stdout.read(len(start.marker)) == start.marker
        assert _frame(process)["hello"] == frames.VERSION
        try:
            yield process
        finally:
            process.kill()


def _frame(process: subprocess.Popen[bytes]) -> frames.Message:
    assert process.stdout is not None
    size = int.from_bytes(process.stdout.read(frames.HEADER), "big")
    return frames.unpack(process.stdout.read(size))


def _send(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


def test_it_ends_with_its_wire() -> None:
    """The head is gone and its end of the pipe with it: the bridge leaves at once, without a word on stderr."""
    with _bridge() as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.close()
        assert process.wait(2 * slowness()) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_it_ends_with_a_signal(number: signal.Signals) -> None:
    """As sshd and Slurm end a session."""
    with _bridge() as process:
        process.send_signal(number)
        assert process.wait(2 * slowness()) == 0


def test_it_does_not_outlive_a_silent_head() -> None:
    """The network drops without a word and the pipe stays open: after its time of silence, the bridge ends."""
    with _bridge(silence=0.3) as process:
        began = time.monotonic()
        _send(process, frames.pack({"op": "ping", "id": 1}))
        assert _frame(process)["re"] == 1
        assert process.wait(2 * slowness()) == 0
        assert time.monotonic() - began > 0.25


@pytest.mark.parametrize("garbage", [b"\xff" * 8, b"\0\0\0\2no", b"\0\0\0\2[]"], ids=["huge", "no json", "list"])
def test_it_ends_with_a_head_that_breaks_the_protocol(garbage: bytes) -> None:
    """There is nothing sensible left to hear."""
    with _bridge() as process:
        _send(process, garbage)
        assert process.wait(2 * slowness()) == 0


def test_questions_that_come_in_one_packet_are_all_answered() -> None:
    """And in pieces as well; answers carry the number of their question, whatever type it has."""
    numbers: list[object] = [1, 2, "x", None, [3], 10**30]
    packed = b"".join(frames.pack({"op": "ping", "id": number}) for number in numbers)
    with _bridge() as process:
        _send(process, packed[:-7])
        _send(process, packed[-7:])
        assert [_frame(process)["re"] for _ in numbers] == numbers
