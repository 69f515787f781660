"""The supervisor: owns a run's processes on a node and keeps them alive for as long as its lease."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import signal
import socket
import time
from collections import deque

from aboard.agent import frames, process_tree, run_directory
from aboard.agent.channel import Channel, read_peer
from aboard.agent.event_loop import EventLoop
from aboard.agent.inspect import rank_stacks
from aboard.agent.supervisor.copier import Copier
from aboard.agent.supervisor.gpu_usage import GpuSampler
from aboard.agent.supervisor.guard_process import SWEEP_SECONDS, Guard, clear_remains, start_guarded
from aboard.agent.supervisor.port_reservation import PortReservations, PortWatch
from aboard.agent.supervisor.rank_group import kill_group
from aboard.agent.supervisor.rank_output import RankOutput
from aboard.agent.supervisor.rank_processes import RankProcesses
from aboard.agent.supervisor.resource_usage import ResourceSampler

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aboard.agent.supervisor_events import EndCause, SupervisorEvent

# Events are rare; a child that is restarted in a tight loop must still not fill our memory.
EVENTS_LIMIT = 10_000
SEND_BUFFER_LIMIT = 65536
# How often termination is checked: soon enough for a person, rarely enough for a loop that also answers beats.
STEP_SECONDS = 0.05
SAMPLE_SECONDS = 1.0
# How soon a guard or bridge that was stopped by a signal is continued.
CONTINUE_SECONDS = 1.0
READY = b"1"


def start_supervisor(message: frames.Message, anchor: tuple[int, int] | None = None) -> None:
    """Starts the supervisor of a run that has none yet; returns when it listens.

    With an anchor, the supervisor ends its ranks when nobody holds the write end of that pipe any more.
    """
    run = str(message["run"])
    try:
        directory = run_directory.make_directory(run)
    except FileExistsError:
        raise OSError("another head already has run %s on this node" % run) from None
    read_end, ready = os.pipe()
    start_guarded(
        run,
        directory,
        ready,
        lambda guard: _run_supervisor(message, directory, ready, guard, anchor),
        kept=() if anchor is None else anchor[:1],
    )
    os.close(ready)
    try:
        status = os.read(read_end, 4096)
    finally:
        os.close(read_end)
    if status != READY:
        run_directory.remove_directory(directory)
        raise OSError(5, "the supervisor did not start: %s" % status.decode("utf-8", "replace"))


def connect_to_supervisor(run: str) -> tuple[int, int]:
    """Connects to the run's supervisor and returns the descriptor and the supervisor's pid."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        try:
            connection.connect(os.path.join(run_directory.resolve_directory(run), run_directory.SOCKET))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise OSError(error.errno, "no supervisor for run %s on this node" % run) from error
        pid, uid = read_peer(connection)
        if uid != os.getuid():
            raise OSError(13, "the socket of run %s belongs to another user" % run)
        return connection.detach(), pid


def _run_supervisor(
    message: frames.Message, directory: str, ready: int, guard: Guard, anchor: tuple[int, int] | None
) -> None:
    try:
        # tmpfiles.d(5): a directory with a BSD lock is left alone by the ageing of /tmp; runs last for weeks.
        fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_SH)
        loop, listener = EventLoop(), socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(directory, run_directory.SOCKET))
        listener.listen(8)
        listener.setblocking(False)
        supervisor = Supervisor(loop, listener, message, directory, guard)
        if anchor is not None:
            supervisor.watch_anchor(anchor[0])
    except Exception as error:
        os.write(ready, ("%s: %s" % (type(error).__name__, error)).encode("utf-8", "replace"))
        raise
    os.write(ready, READY)
    os.close(ready)
    loop.run()
    supervisor.close()
    guard.continue_guard()
    if guard.gone:
        # Otherwise the guard removes it after its cleanup: the run may be started again as soon as this is gone.
        clear_remains(str(message["run"]), directory)
        kill_group(str(message["run"]))
        run_directory.remove_directory(directory)


class Supervisor:
    """Accepts one bridge at a time, with the run's key; every frame from the head renews the lease."""

    def __init__(
        self, loop: EventLoop, listener: socket.socket, message: frames.Message, directory: str, guard: Guard
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._guard = guard
        # Every bridge that may still be alive, by pid, with its start time.
        self._bridges: dict[int, int] = {}
        self._run = str(message["run"])
        self._key = str(message["key"])
        self._set_lease(message)
        self._events: deque[frames.Message] = deque()
        self._seq = 0
        self._lost_events = 0
        self._bridge: Channel | None = None
        self._bridge_leaves = False
        self._credit = 0
        self._output_bytes_sent = 0
        self._credited = 0
        self._finished_outputs: deque[tuple[int, RankOutput]] = deque()
        self._next_output = 0
        self._last_contact = time.monotonic()
        self._lost: float | None = self._last_contact
        self._kill_at: float | None = None
        self._killed: set[int] = set()
        self._stubborn: set[int] = set()
        self._ended = False
        self._stay_after_end = True
        self._children = RankProcesses(
            loop, self._run, directory, self._emit, self._flush_output, unpacked=message.get("unpacked")
        )
        loop.on_readable(listener.fileno(), self._accept)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.on_signal(number, lambda number=number: self._end_by_signal(number))  # type: ignore[misc]
        self._copier = Copier(loop, self._emit)
        self._children.beacons.on_saved = self._copier.note_saved
        self._usage = ResourceSampler()
        self._gpus = GpuSampler(loop)
        self._ports = PortReservations()
        self._watch()
        self._sample()
        self._loop.later(CONTINUE_SECONDS, self._continue_stopped)

    def close(self) -> None:
        if self._bridge is not None:
            self._bridge.close()
        for output in self._children.outputs:
            output.close()
        self._children.close()
        self._copier.close()
        self._gpus.close()
        self._ports.close()

    def watch_anchor(self, anchor: int) -> None:
        """Ends the run on this node when the other end of this pipe closes: Slurm has ended the agent's task."""

        def end() -> None:
            self._loop.remove_fd(anchor)
            self._stay_after_end = False
            self._end("Slurm ended the step on this node", "slurm")

        self._loop.on_readable(anchor, end)
        # From Slurm, which signals the head as well: the ranks get the time that the head gives them.
        self._loop.on_signal(signal.SIGTERM, self._end_without_guard)

    # -- the lease ---------------------------------------------------------------------------------------

    def _set_lease(self, message: frames.Message) -> None:
        lease = message["lease"]
        self._lease, self._beat, self._grace = (float(lease[name]) for name in ("seconds", "beat", "grace"))

    def _watch(self) -> None:
        # Seldom needed: the kernel sends a SIGTERM, unless the guard died before we requested it.
        self._end_without_guard()
        left = compute_lease_deadline(self._last_contact, self._lost, self._lease, self._beat) - time.monotonic()
        if left > 0:
            self._loop.later(min(left, self._beat), self._watch)
        elif self._ended:
            self._loop.stop()
        else:
            self._stay_after_end = False
            self._end("the lease of %g s expired" % self._lease, "lease")

    # -- the guard and the bridges -----------------------------------------------------------------------

    def _end_by_signal(self, number: int) -> None:
        self._end_without_guard()
        self._end("the supervisor received %s" % signal.Signals(number).name, "signal")

    def _end_without_guard(self) -> None:
        if self._guard.gone:
            self._end("the supervisor's guard process was killed", "guard")

    def _continue_stopped(self) -> None:
        """Continues what a signal has stopped: without them, nobody would clean up after us or reach the head."""
        self._loop.later(CONTINUE_SECONDS, self._continue_stopped)
        if self._guard.continue_guard():
            self._emit({"kind": "continued", "process": "guard"})
        for pid, started in list(self._bridges.items()):
            if process_tree.read_start_time(pid) != started:
                del self._bridges[pid]
            elif process_tree.continue_stopped(pid, started):
                self._emit({"kind": "continued", "process": "bridge"})
        if self._guard.page[0]:
            self._guard.page[0] = 0
            self._emit({"kind": "continued", "process": "supervisor"})

    # -- bridges -----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _address = self._listener.accept()
            pid, uid = read_peer(connection)
            if uid != os.getuid():
                connection.close()
                return
            fd = connection.detach()
            channel = Channel(
                self._loop, (fd, fd), lambda body: self._from(channel, pid, body), lambda: self._drop_bridge(channel)
            )

    def _from(self, channel: Channel, pid: int, body: bytes) -> None:
        try:
            message = frames.unpack_any(body)
        except frames.FrameError:
            channel.close()
            self._drop_bridge(channel)
            return
        try:
            if channel is not self._bridge:
                self._admit(channel, pid, message)
            else:
                self._last_contact = time.monotonic()
                self._handle(message)
        except Exception as error:  # noqa: BLE001 - whatever a frame contains, the ranks must not lose their supervisor
            channel.send({"re": message.get("id"), "error": "%s: %s" % (type(error).__name__, error)})

    def _admit(self, channel: Channel, pid: int, message: frames.Message) -> None:
        """The first frame of a bridge carries the run's key; one without it is rejected."""
        key = str(message.get("key", ""))
        if not hmac.compare_digest(key.encode(), self._key.encode()):
            channel.send({"re": message.get("id"), "error": "wrong key for run %s" % self._run})
            channel.close()
            return
        # Parse everything first: an invalid frame must not leave a bridge half admitted.
        credit, acked = int(message.get("credit", 0)), int(message.get("acked", 0))
        have = {str(name): int(offset) for name, offset in (message.get("have") or {}).items()}
        if self._bridge is not None:
            self._bridge.close()
        self._bridge = channel
        self._bridge_leaves = False
        self._bridges[pid] = process_tree.read_start_time(pid)
        self._lost = None
        self._last_contact = time.monotonic()
        self._credit = credit
        self._output_bytes_sent = self._credited = 0
        self._finished_outputs.clear()
        for output in self._children.outputs:
            output.rewind(have.get("/".join(output.name), 0))
        reply = {"children": self._children.states, "lost_events": self._lost_events, "wall": time.time()}
        channel.send(dict(reply, re=message.get("id")))
        self._ack(acked)
        for event in self._events:
            channel.send(event)
        channel.on_drained = self._flush_output
        self._flush_output()

    def _drop_bridge(self, channel: Channel) -> None:
        if channel is self._bridge:
            self._bridge = None
            self._lost = time.monotonic()
            if not self._bridge_leaves and not self._ended:
                self._emit({"kind": "killed", "process": "bridge"})

    # -- requests from the head ------------------------------------------------------------------------------

    def _handle(self, message: frames.Message) -> None:
        if message["op"] in ("stacks", "snapshot"):
            (self._collect_stacks if message["op"] == "stacks" else self._collect_snapshot)(message)
            return
        if message["op"] in ("capture", "release", "print", "activity"):
            self._children.open_captures().handle(message, self._make_reply(message))
            return
        if message["op"] == "leave":
            self._bridge_leaves = True
            return
        if message["op"] == "copies":
            self._copier.handle(message, self._make_reply(message))
            return
        reply = self._handle_now(message["op"], message)
        if message.get("id") is not None and self._bridge is not None:
            reply["re"] = message["id"]
            self._bridge.send(reply)

    def _handle_now(self, op: str, message: frames.Message) -> frames.Message:
        """Handles requests that complete at once; returns the reply."""
        reply: frames.Message = {}
        if op == "beat":
            reply["wall"] = time.time()
        elif op == "ack":
            self._ack(int(message["seq"]))
        elif op == "credit":
            self._credit += int(message["bytes"])
            self._credited += int(message["bytes"])
            self._flush_output()
        elif op == "code":
            self._children.store_code(message["tail"])
        elif op in ("start", "standby"):
            self._start(op, message)
        elif op == "signal":
            self._children.signal(str(message["child"]), int(message["signal"]))
        elif op in ("reserve", "listening"):
            reply.update(self._handle_port(op, message))
        elif op == "lease":
            self._set_lease(message)
        elif op == "end":
            self._grace = float(message.get("grace", self._grace))
            self._end("the head requested it", "head")
        else:
            raise ValueError("unknown op: %s" % op)
        return reply

    def _handle_port(self, op: str, message: frames.Message) -> frames.Message:
        port = int(message["port"])
        if op == "listening":
            self._children.beacons.release(port)
            return {}
        port = self._ports.reserve(port, bool(message.get("fixed")))
        watch = PortWatch(self._loop, port, self._children.list_own, self._emit)
        self._children.beacons.on_master = watch.hurry
        return {"port": port}

    def _start(self, op: str, message: frames.Message) -> None:
        if self._kill_at is not None:
            raise ValueError("the run is being terminated on this node")
        (self._children.start if op == "start" else self._children.start_standby)(message)

    def _collect_stacks(self, message: frames.Message) -> None:
        """Replies later, to the bridge that asked: ranks need a moment, and beats continue meanwhile."""
        send_reply = self._make_reply(message)
        within = float(message.get("within", 2.0))
        rank_stacks.collect_stacks(
            self._loop,
            self._select_ranks(message),
            within,
            lambda stacks_by_rank: send_reply({"stacks": stacks_by_rank}),
        )

    def _collect_snapshot(self, message: frames.Message) -> None:
        """Collects a snapshot of the ranks and their node; also replies later."""
        # Late: a healthy run never needs it.
        from aboard.agent.inspect import node_snapshot, node_state  # noqa: PLC0415 - the reason is above

        send_reply = self._make_reply(message)

        def complete(reply: frames.Message) -> None:
            node = reply["snapshot"]["node"]
            node["oom_before"], node["malformed"] = self._usage.oom_before, self._children.beacons.malformed
            node["throttled"] = node_state.compute_throttled_share(self._usage.throttles_before)
            send_reply(reply)

        node_snapshot.answer_snapshot_request(
            self._loop, self._children.beacons, self._select_ranks(message), message, complete
        )

    def _select_ranks(self, message: frames.Message) -> dict[str, tuple[int, Any]]:
        """The children that a request is about, each with its first process (0 if it has none) and its beacon."""
        roots, beacons = self._children.roots(), self._children.beacons.states
        requested = message.get("children")
        names = [str(name) for name in (self._children.states if requested is None else requested)]
        return {name: (roots.get(name, 0), beacons.get(name)) for name in names}

    def _make_reply(self, message: frames.Message) -> Callable[[frames.Message], None]:
        """Returns a function that replies to the bridge that asked."""
        bridge, number = self._bridge, message.get("id")

        def send_reply(reply: frames.Message) -> None:
            if bridge is not None:
                bridge.send(dict(reply, re=number))

        return send_reply

    # -- events and output for the head -----------------------------------------------------------------------------

    def _emit(self, event: SupervisorEvent, wall: float | None = None) -> None:
        if event["kind"] == "exited":
            self._send_last_figures(event["child"])
        self._seq += 1
        frame = {"event": self._seq, "wall": time.time() if wall is None else wall, **event}
        self._events.append(frame)
        if len(self._events) > EVENTS_LIMIT:
            self._events.popleft()
            self._lost_events += 1
        if self._bridge is not None:
            self._bridge.send(frame)

    def _send_last_figures(self, child: str) -> None:
        """Sends what a child reported since the last sample: its final step and loss."""
        figures = self._children.beacons.last_figures(child)
        if figures and self._bridge is not None:
            self._bridge.send({"samples": {"wall": time.time(), "node": {}, "children": {child: figures}}})

    def _ack(self, seq: int) -> None:
        while self._events and self._events[0]["event"] <= seq:
            self._events.popleft()
        self._leave_if_done()

    def _flush_output(self) -> None:
        """Sends output while there is credit and the channel is free, one stream after the other."""
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
            if output.end_sent:
                self._finished_outputs.append((self._output_bytes_sent, output))
        # The head returns credit for what it has received: a stream that it has completely needs no spool any more.
        while self._finished_outputs and self._finished_outputs[0][0] <= self._credited:
            self._finished_outputs.popleft()[1].release()

    def _sample(self) -> None:
        """Sends this second's measurements if the channel is free; never queues them, since the next replace them."""
        self._loop.later(SAMPLE_SECONDS, self._sample)
        roots = self._children.roots()
        with contextlib.suppress(OSError, ValueError, IndexError):
            self._find_launchers(roots)
        if self._bridge is None or self._bridge.unsent or not roots:
            return
        # An unreadable or unfamiliar /proc costs the measurements, not the supervisor.
        with contextlib.suppress(OSError, ValueError, IndexError):
            children = self._usage.children(roots)
            for name, steps in self._children.beacons.steps().items():
                children.setdefault(name, {}).update(steps)
            samples = {"wall": time.time(), "node": self._usage.node(), "children": children}
            gpus = self._gpus.read()
            self._bridge.send({"samples": dict(samples, gpus=gpus) if gpus else samples})

    def _find_launchers(self, roots: dict[str, int]) -> None:
        """Looks for launchers that ranks have started; often only until the ranks have their process group."""
        launchers = self._children.launchers
        soon = launchers.soon and not self._children.beacons.are_ready()
        members = self._usage.find_members(roots, time.monotonic(), soon=soon)
        if members is not None:
            launchers.scan(members, roots)

    def _leave_if_done(self) -> None:
        """Stops once every event is acknowledged and all output is sent."""
        if not self._ended or self._events or (self._bridge is not None and self._bridge.unsent):
            return
        # A process that cannot be killed may keep an output open for ever; do not wait for it.
        if self._stubborn or all(output.end_sent for output in self._children.outputs):
            self._loop.stop()

    # -- the end -----------------------------------------------------------------------------------------

    def _end(self, why: str, cause: EndCause) -> None:
        """TERM, then KILL after the grace; stays until its last event is acknowledged or the lease expires.

        A second request with a shorter grace shortens the wait.
        """
        last_call = time.monotonic() + self._grace
        if self._kill_at is not None:
            self._kill_at = min(self._kill_at, last_call)
            return
        self._kill_at = last_call
        self._children.drop_waiting()
        self._copier.close()
        self._gpus.close()
        self._emit({"kind": "ending", "why": why, "cause": cause})
        self._children.terminate()
        self._terminate_step()

    def _terminate_step(self) -> None:
        """One step at a time, since a process that cannot be killed must not block replies to the head."""
        left = self._children.alive()
        now, last_call = time.monotonic(), self._kill_at or 0.0
        if left and now < last_call + SWEEP_SECONDS:
            if now >= last_call:
                self._killed |= left
                process_tree.send_signal(left, signal.SIGKILL)
            self._loop.later(STEP_SECONDS, self._terminate_step)
            return
        self._children.reap()
        self._stubborn = left
        self._emit({"kind": "ended", "killed": len(self._killed), "stubborn": sorted(left)})
        self._ended = True
        if not self._stay_after_end:
            self._loop.stop()


def compute_lease_deadline(last_contact: float, lost_at: float | None, seconds: float, beat: float) -> float:
    """The moment at which the lease expires.

    After a bridge is lost, the lease runs from the loss. A network that drops packets silently shows no loss; the
    head's last frame may then be a whole beat older than the cut, which must not shorten the lease.
    """
    return (last_contact + beat if lost_at is None else lost_at) + seconds
