"""The keeper: owns a run's processes on a node, and lets them live as long as its lease."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import signal
import socket
import struct
import time
from collections import deque

from aboard.agent import frames, process_tree, run_directory
from aboard.agent.channel import Channel
from aboard.agent.event_loop import EventLoop
from aboard.agent.inspect import rank_stacks
from aboard.agent.supervisor.guard_process import SWEEP_SECONDS, start_guarded
from aboard.agent.supervisor.port_reservation import PortReservations
from aboard.agent.supervisor.rank_output import RankOutput
from aboard.agent.supervisor.rank_processes import RankProcesses
from aboard.agent.supervisor.resource_usage import ResourceSampler

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Events are rare; a child that is restarted in a tight loop must still not fill our memory.
EVENTS_LIMIT = 10_000
SEND_BUFFER_LIMIT = 65536
# How often the end is looked at: soon enough for a person, rarely enough for a loop that also answers beats.
STEP_SECONDS = 0.05
SAMPLE_SECONDS = 1.0
READY = b"1"


def start_supervisor(message: frames.Message) -> None:
    """Starts the keeper of a run that has none yet, and returns when it listens."""
    run = str(message["run"])
    directory = run_directory.make_directory(run)
    read_end, ready = os.pipe()
    start_guarded(run, directory, ready, lambda guard: _run_supervisor(message, directory, ready, guard))
    os.close(ready)
    try:
        status = os.read(read_end, 4096)
    finally:
        os.close(read_end)
    if status != READY:
        run_directory.remove_directory(directory)
        raise OSError(5, "the keeper did not start: %s" % status.decode("utf-8", "replace"))


def connect_to_supervisor(run: str) -> int:
    """A descriptor of a connection to the run's keeper."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    try:
        connection.connect(os.path.join(run_directory.resolve_directory(run), run_directory.SOCKET))
    except (FileNotFoundError, ConnectionRefusedError) as error:
        connection.close()
        raise OSError(error.errno, "no keeper holds run %s here" % run) from error
    except OSError:
        connection.close()
        raise
    return connection.detach()


def _run_supervisor(message: frames.Message, directory: str, ready: int, guard: int) -> None:
    try:
        loop, supervisor = _open_supervisor(message, directory, guard)
    except Exception as error:
        os.write(ready, ("%s: %s" % (type(error).__name__, error)).encode("utf-8", "replace"))
        raise
    os.write(ready, READY)
    os.close(ready)
    loop.run()
    supervisor.close()
    if os.getppid() != guard:
        # Else the guard does it, once it has swept: the same run may be held anew as soon as this is gone.
        run_directory.remove_directory(directory)


def _open_supervisor(message: frames.Message, directory: str, guard: int) -> tuple[EventLoop, Supervisor]:
    # tmpfiles.d(5): a directory with a BSD lock is left alone by the ageing of /tmp; runs last for weeks.
    lock = os.open(directory, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    loop = EventLoop()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(directory, run_directory.SOCKET))
    listener.listen(8)
    listener.setblocking(False)
    return loop, Supervisor(loop, listener, message, directory, guard)


class Supervisor:
    """One bridge at a time may speak to it, with the run's key; every word of the head's renews the lease."""

    def __init__(
        self, loop: EventLoop, listener: socket.socket, message: frames.Message, directory: str, guard: int
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._guard = guard
        self._run = str(message["run"])
        self._key = str(message["key"])
        self._set_lease(message)
        self._events: deque[frames.Message] = deque()
        self._seq = 0
        self._lost_events = 0
        self._bridge: Channel | None = None
        self._credit = 0
        self._output_bytes_sent = 0
        self._credited = 0
        self._told: deque[tuple[int, RankOutput]] = deque()
        self._next_output = 0
        self._heard = time.monotonic()
        self._lost: float | None = self._heard
        self._kill_at: float | None = None
        self._killed: set[int] = set()
        self._stubborn: set[int] = set()
        self._ended = False
        self._stay_after_end = True
        self._children = RankProcesses(loop, self._run, directory, self._tell, self._flush_output)
        loop.on_readable(listener.fileno(), self._accept)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.on_signal(number, lambda: self._end("the keeper got a signal"))
        self._gauges = ResourceSampler()
        self._ports = PortReservations()
        self._watch()
        self._sample()

    def close(self) -> None:
        if self._bridge is not None:
            self._bridge.close()
        for output in self._children.outputs:
            output.close()
        self._children.beacons.close()
        self._ports.close()

    # -- the lease ---------------------------------------------------------------------------------------

    def _set_lease(self, message: frames.Message) -> None:
        lease = message["lease"]
        self._lease, self._beat, self._grace = (float(lease[name]) for name in ("seconds", "beat", "grace"))

    def _watch(self) -> None:
        if os.getppid() != self._guard:
            # Seldom needed: the kernel sends a SIGTERM, unless the guard died before we could ask for it.
            self._end("its guard is gone")
        left = compute_lease_deadline(self._heard, self._lost, self._lease, self._beat) - time.monotonic()
        if left > 0:
            self._loop.later(min(left, self._beat), self._watch)
        elif self._ended:
            self._loop.stop()
        else:
            self._stay_after_end = False
            self._end("the lease of %g s is over" % self._lease)

    # -- bridges -----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _address = self._listener.accept()
            _pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != os.getuid():
                connection.close()
                return
            fd = connection.detach()
            channel = Channel(self._loop, (fd, fd), lambda body: self._from(channel, body), lambda: self._gone(channel))

    def _from(self, channel: Channel, body: bytes) -> None:
        try:
            message = frames.unpack(body)
        except frames.FrameError:
            channel.close()
            self._gone(channel)
            return
        try:
            if channel is not self._bridge:
                self._admit(channel, message)
            else:
                self._heard = time.monotonic()
                self._obey(message)
        except Exception as error:  # noqa: BLE001 - whatever a frame holds, the ranks must not lose their keeper
            channel.send({"re": message.get("id"), "error": "%s: %s" % (type(error).__name__, error)})

    def _admit(self, channel: Channel, message: frames.Message) -> None:
        """The first frame of a bridge carries the run's key; whoever hasn't got it is sent away."""
        key = str(message.get("key", ""))
        if not hmac.compare_digest(key.encode(), self._key.encode()):
            channel.send({"re": message.get("id"), "error": "the key does not fit run %s" % self._run})
            channel.close()
            return
        # All is read before anything is done: a frame that is wrong must not leave a bridge half admitted.
        credit, acked = int(message.get("credit", 0)), int(message.get("acked", 0))
        have = {str(name): int(offset) for name, offset in (message.get("have") or {}).items()}
        if self._bridge is not None:
            self._bridge.close()
        self._bridge = channel
        self._lost = None
        self._heard = time.monotonic()
        self._credit = credit
        self._output_bytes_sent = self._credited = 0
        self._told.clear()
        for output in self._children.outputs:
            output.rewind(have.get("/".join(output.name), 0))
        reply = {"children": self._children.states, "lost_events": self._lost_events, "wall": time.time()}
        channel.send(dict(reply, re=message.get("id")))
        self._ack(acked)
        for event in self._events:
            channel.send(event)
        channel.on_drained = self._flush_output
        self._flush_output()

    def _gone(self, channel: Channel) -> None:
        if channel is self._bridge:
            self._bridge = None
            self._lost = time.monotonic()

    # -- what the head asks ------------------------------------------------------------------------------

    def _obey(self, message: frames.Message) -> None:
        if message["op"] in ("stacks", "witness"):
            (self._show_stacks if message["op"] == "stacks" else self._collect_snapshot)(message)
            return
        answer = self._do(message["op"], message)
        if message.get("id") is not None and self._bridge is not None:
            answer["re"] = message["id"]
            self._bridge.send(answer)

    def _do(self, op: str, message: frames.Message) -> frames.Message:
        """What is done at once; returns what there is to answer."""
        answer: frames.Message = {}
        if op == "beat":
            answer["wall"] = time.time()
        elif op == "ack":
            self._ack(int(message["seq"]))
        elif op == "credit":
            self._credit += int(message["bytes"])
            self._credited += int(message["bytes"])
            self._flush_output()
        elif op == "bring":
            self._children.bring(frames.text_to_bytes(str(message["data"])))
        elif op == "start":
            self._start(message)
        elif op == "signal":
            self._children.signal(str(message["child"]), int(message["signal"]))
        elif op == "reserve":
            answer["port"] = self._ports.reserve(int(message["port"]), bool(message.get("fixed")))
        elif op == "lease":
            self._set_lease(message)
        elif op == "end":
            self._grace = float(message.get("grace", self._grace))
            self._end("the head asked for it")
        else:
            raise ValueError("an unknown op: %s" % op)
        return answer

    def _start(self, message: frames.Message) -> None:
        if self._kill_at is not None:
            raise ValueError("the run is ending here")
        self._children.start(message)

    def _show_stacks(self, message: frames.Message) -> None:
        """Answered later, to the bridge that asked: the ranks need a moment, and beats go on meanwhile."""
        answer = self._later(message)
        within = float(message.get("within", 2.0))
        rank_stacks.collect_stacks(
            self._loop, self._select_ranks(message), within, lambda stacks_by_rank: answer({"stacks": stacks_by_rank})
        )

    def _collect_snapshot(self, message: frames.Message) -> None:
        """All that is to be seen of the ranks and around them, answered later too."""
        # Late, since a run that goes well never needs it.
        from aboard.agent.inspect import node_state, snapshot_request  # noqa: PLC0415 - the reason is above

        answer = self._later(message)

        def complete(reply: frames.Message) -> None:
            node = reply["witness"]["node"]
            node["oom_before"] = self._gauges.oom_before
            node["throttled"] = node_state.compute_throttled_share(self._gauges.throttles_before)
            answer(reply)

        snapshot_request.answer_snapshot_request(
            self._loop, self._children.beacons, self._select_ranks(message), message, complete
        )

    def _select_ranks(self, message: frames.Message) -> dict[str, tuple[int, Any]]:
        """The children that a question is about, each with its first process (0 if it has none) and its beacon."""
        roots, beacons = self._children.roots(), self._children.beacons.heard
        requested = message.get("children")
        names = [str(name) for name in (self._children.states if requested is None else requested)]
        return {name: (roots.get(name, 0), beacons.get(name)) for name in names}

    def _later(self, message: frames.Message) -> Callable[[frames.Message], None]:
        """An answer to the bridge that asked."""
        bridge, number = self._bridge, message.get("id")

        def answer(reply: frames.Message) -> None:
            if bridge is not None:
                bridge.send(dict(reply, re=number))

        return answer

    # -- what the head hears -----------------------------------------------------------------------------

    def _tell(self, kind: str, wall: float | None = None, **fields: Any) -> None:
        if kind == "exited":
            self._last_figures(str(fields["child"]))
        self._seq += 1
        event = {"event": self._seq, "kind": kind, "wall": time.time() if wall is None else wall}
        event.update(fields)
        self._events.append(event)
        if len(self._events) > EVENTS_LIMIT:
            self._events.popleft()
            self._lost_events += 1
        if self._bridge is not None:
            self._bridge.send(event)

    def _last_figures(self, child: str) -> None:
        """What it reported since the last second's figures: the step and the loss that a run ended with."""
        figures = self._children.beacons.last_figures(child)
        if figures and self._bridge is not None:
            self._bridge.send({"samples": {"wall": time.time(), "node": {}, "children": {child: figures}}})

    def _ack(self, seq: int) -> None:
        while self._events and self._events[0]["event"] <= seq:
            self._events.popleft()
        self._leave_if_done()

    def _flush_output(self) -> None:
        """Sends output while there is credit and the wire is free, each stream in its turn."""
        self._send_output_frames()
        self._leave_if_done()

    def _send_output_frames(self) -> None:
        outputs = self._children.outputs
        idle = 0
        while (
            self._bridge is not None
            and self._bridge.open
            and self._bridge.unsent < SEND_BUFFER_LIMIT
            and idle < len(outputs)
        ):
            if self._credit <= 0:
                break
            output = outputs[self._next_output % len(outputs)]
            self._next_output += 1
            frame = output.next_frame(self._credit)
            if frame is None:
                idle += 1
                continue
            idle = 0
            self._credit -= len(frame["data"])
            self._output_bytes_sent += len(frame["data"])
            self._bridge.send(frame)
            if output.told:
                self._told.append((self._output_bytes_sent, output))
        # Credit comes back for what the head has taken in: an output of which that is all is only kept for its end.
        while self._told and self._told[0][0] <= self._credited:
            self._told.popleft()[1].release()

    def _sample(self) -> None:
        """Figures of this second, if the wire is free: they are never queued, the next ones will do."""
        self._loop.later(SAMPLE_SECONDS, self._sample)
        roots = self._children.roots()
        if self._bridge is None or self._bridge.unsent or not roots:
            return
        # A /proc that can't be read, or not as we know it: then there are no figures, but there is a keeper.
        with contextlib.suppress(OSError, ValueError, IndexError):
            children = self._gauges.children(roots)
            for name, steps in self._children.beacons.steps().items():
                children.setdefault(name, {}).update(steps)
            self._bridge.send({"samples": {"wall": time.time(), "node": self._gauges.node(), "children": children}})

    def _leave_if_done(self) -> None:
        """Nothing is left to tell: every event is heard, and all output is on its way."""
        if not self._ended or self._events or (self._bridge is not None and self._bridge.unsent):
            return
        # Who would not die may hold an output open for ever; that isn't waited for.
        if self._stubborn or all(output.told for output in self._children.outputs):
            self._loop.stop()

    # -- the end -----------------------------------------------------------------------------------------

    def _end(self, why: str) -> None:
        """TERM, then after the grace KILL; the keeper stays until its last event is heard or the lease is over.

        Asked again, with a shorter grace, it doesn't wait out the longer one.
        """
        last_call = time.monotonic() + self._grace
        if self._kill_at is not None:
            self._kill_at = min(self._kill_at, last_call)
            return
        self._kill_at = last_call
        self._tell("ending", why=why)
        alive = self._children.alive()
        process_tree.send_signal(alive, signal.SIGTERM)
        # A stopped process would take no notice until the grace is over.
        process_tree.send_signal(alive, signal.SIGCONT)
        self._see_off()

    def _see_off(self) -> None:
        """One step at a time, since a process that can't be killed must not keep the head from being answered."""
        left = self._children.alive()
        now, last_call = time.monotonic(), self._kill_at or 0.0
        if left and now < last_call + SWEEP_SECONDS:
            if now >= last_call:
                self._killed |= left
                process_tree.send_signal(left, signal.SIGKILL)
            self._loop.later(STEP_SECONDS, self._see_off)
            return
        self._children.reap()
        self._stubborn = left
        self._tell("ended", killed=len(self._killed), stubborn=sorted(left))
        self._ended = True
        if not self._stay_after_end:
            self._loop.stop()


def compute_lease_deadline(last_contact: float, lost_at: float | None, seconds: float, beat: float) -> float:
    """The moment at which the lease expires.

    After a bridge is lost, the lease runs from the loss. A network that drops packets silently shows no loss; the
    head's last frame may then be a whole beat older than the cut, which must not shorten the lease.
    """
    return (last_contact + beat if lost_at is None else lost_at) + seconds
