"""A channel: frames over a socket, inside the loop."""

import os
import signal
import socket
from collections.abc import Iterator

import pytest

from aboard.agent import frames
from aboard.agent.channel import Channel
from aboard.agent.event_loop import EventLoop


class Pair:
    """A channel, and the plain socket at its other end."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(0)
        fd = ours.detach()
        self.bodies: list[bytes] = []
        self.closed = 0
        self.channel = Channel(self.loop, (fd, fd), self.bodies.append, self._on_close)

    def _on_close(self) -> None:
        self.closed += 1
        self.loop.stop()

    def run(self) -> None:
        self.loop.later(5.0, self.loop.stop)
        self.loop.run()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.channel.close()
    made.theirs.close()
    signal.set_wakeup_fd(-1)


def test_frames_arrive_whole(pair: Pair) -> None:
    """Two frames and a half in one packet are two bodies; the end of the stream is told once."""
    packed = frames.pack({"a": 1}) + frames.pack({"b": 2})
    pair.theirs.send(packed + b"\0\0")
    pair.theirs.shutdown(socket.SHUT_WR)
    pair.run()
    assert [frames.unpack(body) for body in pair.bodies] == [{"a": 1}, {"b": 2}]
    assert pair.closed == 1
    assert not pair.channel.open


def test_garbage_closes_it(pair: Pair) -> None:
    """A header over the limit is the end of the channel, not of the process."""
    pair.theirs.send(b"\xff" * 8)
    pair.run()
    assert pair.closed == 1


def test_closing_it_ourselves_tells_nobody(pair: Pair) -> None:
    """`close` is quiet and may be called twice; what is sent afterwards goes nowhere."""
    pair.channel.close()
    pair.channel.close()
    pair.channel.send({"a": 1})
    assert pair.closed == 0


def test_what_does_not_fit_waits_and_then_all_of_it_arrives(pair: Pair) -> None:
    """A reader that is slower than we are gets every byte, in order, and then we are told that it is free."""
    message = {"data": "x" * 1_000_000}
    drained: list[int] = []
    pair.channel.on_drained = lambda: drained.append(pair.channel.unsent)
    for _ in range(4):
        pair.channel.send(message)
    assert pair.channel.unsent > 0
    splitter = frames.FrameSplitter()
    found: list[bytes] = []

    def take() -> None:
        found.extend(splitter.feed(pair.theirs.recv(65536)))
        if len(found) == 4:
            pair.loop.later(0.01, pair.loop.stop)

    pair.loop.on_readable(pair.theirs.fileno(), take)
    pair.run()
    pair.loop.remove_fd(pair.theirs.fileno())
    assert [frames.unpack(body) for body in found] == [message] * 4
    assert drained == [0]


def test_a_sender_is_not_called_back_while_it_sends(pair: Pair) -> None:
    """Else one that sends the next piece when it is told would call itself until the stack is full."""
    calls: list[None] = []
    pair.channel.on_drained = lambda: calls.append(None)
    pair.channel.send({"a": 1})
    assert not calls


def test_a_drain_that_a_later_send_completes_is_told_too(pair: Pair) -> None:
    """The reader took all while another frame was sent: whoever waits for room must still hear of it."""
    drained: list[None] = []
    pair.channel.on_drained = lambda: drained.append(None)
    pair.channel.send({"data": "x" * 400_000})
    while pair.channel.unsent:
        pair.theirs.recv(1 << 20)
        pair.channel.send({"b": 2})
    pair.theirs.recv(1 << 20)
    pair.loop.later(0.02, pair.loop.stop)
    pair.run()
    assert drained


def test_last_words_are_heard_though_the_answer_can_not_be_sent(pair: Pair) -> None:
    """The far end said something and left; that we can't write to it any more must not lose what it said."""
    pair.theirs.send(frames.pack({"last": "words"}))
    pair.theirs.close()
    pair.channel.send({"a": 1})
    pair.channel.send({"b": 2})
    assert pair.channel.unsent == 0
    assert pair.closed == 0
    pair.run()
    assert [frames.unpack(body) for body in pair.bodies] == [{"last": "words"}]
    assert pair.closed == 1


def test_a_paused_channel_reads_nothing_until_it_is_resumed(pair: Pair) -> None:
    """A flood waits in the sender's socket, not in our memory."""
    pair.channel.pause()
    pair.theirs.send(frames.pack({"a": 1}))
    pair.theirs.shutdown(socket.SHUT_WR)
    # The end of the stream, which stops the loop, is read behind the frame, and both only once it is resumed.
    pair.loop.later(0.01, lambda: pair.bodies.append(b"resumed"))
    pair.loop.later(0.01, pair.channel.resume)
    pair.run()
    assert pair.bodies == [b"resumed", frames.pack({"a": 1})[frames.HEADER :]]


def test_a_pipe_that_nobody_reads_is_the_end() -> None:
    """With a pipe for each direction, the one that is broken says nothing of the other: the wire is over."""
    loop = EventLoop()
    (to_us, their_out), (their_in, from_us) = os.pipe(), os.pipe()
    closed: list[None] = []
    channel = Channel(loop, (to_us, from_us), lambda _body: None, lambda: closed.append(None))
    os.close(their_in)
    channel.send({"a": 1})
    assert len(closed) == 1
    os.close(their_out)
    signal.set_wakeup_fd(-1)


def test_two_descriptors_make_a_channel_too() -> None:
    """OpenSSH gives a pipe for each direction: one channel reads the one and writes the other."""
    loop = EventLoop()
    (to_us, their_out), (their_in, from_us) = os.pipe(), os.pipe()
    bodies: list[bytes] = []
    channel = Channel(loop, (to_us, from_us), bodies.append, loop.stop)
    channel.send({"a": 1})
    os.write(their_out, os.read(their_in, 4096))
    os.close(their_out)
    loop.run()
    assert [frames.unpack(body) for body in bodies] == [{"a": 1}]
    os.close(their_in)
    signal.set_wakeup_fd(-1)
