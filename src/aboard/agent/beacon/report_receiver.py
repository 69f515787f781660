"""Receives the beacons' reports in the supervisor: phases, steps, metrics, the exception that ends a rank."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import struct
import time
from math import isfinite

from aboard.agent import frames
from aboard.agent.event_loop import EventLoop
from aboard.agent.private_folders import replace_file
from aboard.agent.secret_redaction import Redactor, mask_secrets

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aboard.agent.supervisor.nested_launchers import NestedLaunchers
    from aboard.agent.supervisor_events import Emit, ExceptionText, FilesSaved, LastWords

SOCKET = "beacon.sock"
FOLDER = "beacon"
# Contains rank 0's port once rank 0 listens on it.
LISTENING = "listening"
FILES = ("sitecustomize", "aboard_beacon", "aboard_beacon_torch", "aboard_beacon_flight")
PHASES = ("started", "torch", "store", "group", "collective")
GROUP = PHASES.index("group")
# What a rank may report that it does instead of steps; sent as an index into this tuple.
ACTIVITIES = ("", "evaluation", "checkpoint", "data", "compiling", "rendezvous")
REQUEST_SUFFIX = ".ask"
# A real-time signal: Slurm, Lightning and torch use USR1 and USR2, and glibc the first two of these itself.
STACKS_SIGNAL = signal.SIGRTMIN + 7
EDGE_CHARS = 500
TYPE_CHARS, MESSAGE_CHARS, TRACE_CHARS = 200, 2000, 8000
# A script may call the hook and continue; one that does so endlessly gets only this many reports.
RAISED_LIMIT = 8
# Checkpoints that one rank may report, and files in one report.
SAVED_LIMIT, SAVED_FILES, SAVED_CHARS, MARKER_DIGITS = 10_000, 500, 100, 64
DATAGRAM_BYTES = 128 * 1024
# How many reports are read before other descriptors have their turn.
BATCH_SIZE = 64
ERROR_FILE_BYTES = 256 * 1024
# How faulthandler begins what it writes for a fatal signal.
FATAL = "Fatal Python error: "
# Masking may lengthen it; the innermost frames come first.
FATAL_CHARS = TRACE_CHARS // 2
CREDENTIALS = struct.Struct("3i")
MOST = 2**53
# Limits on a trainer's metrics: more and longer names than any display shows.
MOST_METRICS, METRIC_CHARS = 64, 64
OLDEST_SECONDS = 3600.0
# A pipe takes so much at once or not at all; a trainer's line has 1 kB.
LINE_BYTES = 4096
NO_LINES = -1
# When it came to collectives (a group's key, name, sequence numbers, times and last number), or why that is unknown.
ARRIVALS, IDLE = {"groups": [(str, str, [int], [int], int)]}, {"why": str}
JOIN_FIELDS = {"host": str, "port": int, "world": int, "rank": int, "master": bool}


class BeaconState:
    """What one rank has reported so far."""

    def __init__(self, number: int, directory: str, secrets: list[str]) -> None:
        self.phase = -1
        self.raised = 0
        self.saved = 0
        self.pid = 0
        self.step: int | None = None
        self.step_seconds: float | None = None
        self.metrics: dict[str, float] = {}
        self.secrets = secrets
        # What it reports doing instead of steps, its arguments to the store, its flight record and when that arrived.
        self.doing = 0
        # Where lines of its trainer's metrics go, once it has sent one.
        self.lines = NO_LINES
        # When it came to its last collectives, until that is sent to the head.
        self.arrivals: dict[str, Any] = {}
        self.joining: dict[str, Any] = {}
        self.joined_at = 0.0
        self.flight: dict[str, Any] = {}
        self.flight_received_at = 0.0
        self.stacks = os.path.join(directory, "%d.stacks" % number)
        self.error_file = os.path.join(directory, "%d.error.json" % number)

    @property
    def request_path(self) -> str:
        """The socket on which the rank takes requests, once it has a process group."""
        return self.stacks.rpartition(".")[0] + REQUEST_SUFFIX

    def take_figures(self, message: frames.Message) -> bool:
        """Takes what the next report of its kind replaces; False for any other report."""
        if "step" in message:
            self.step = _parse_number(int(message["step"]))
            if "seconds" in message:
                self.step_seconds = _parse_number(float(message["seconds"]))
        elif "metrics" in message:
            self.metrics = _parse_metrics(message["metrics"])
        elif "arrivals" in message:
            kinds = ARRIVALS if "groups" in message["arrivals"] else IDLE
            self.arrivals = frames.decode_fields(message["arrivals"], kinds)
        else:
            return False
        return True

    def figures(self) -> dict[str, Any]:
        """Its latest step and its trainer's metrics."""
        figures: dict[str, Any] = {}
        if self.step is not None:
            figures["step"] = self.step
            if self.step_seconds is not None:
                figures["step_seconds"] = self.step_seconds
        if self.metrics:
            figures["metrics"] = self.metrics
        return figures

    def describe(self, since: float) -> dict[str, Any]:
        """What it has reported; the flight record only if it arrived since then."""
        joining = dict(self.joining, seconds=time.monotonic() - self.joined_at) if self.joining else {}
        report: dict[str, Any] = {"doing": self.doing, "joining": joining}
        report["flight"] = self.flight if self.flight_received_at >= since else {"why": "it sent no flight record"}
        return report


class BeaconReceiver:
    """Listens once there is a child with a beacon; invalid reports are counted and ignored."""

    def __init__(self, loop: EventLoop, directory: str, emit: Emit, launchers: NestedLaunchers) -> None:
        self.states: dict[str, BeaconState] = {}
        self.malformed = 0
        self._loop = loop
        self._directory = directory
        self._emit = emit
        self._launchers = launchers
        self._talk: socket.socket | None = None
        # Called for the first line of metrics that a child sends; returns the pipe for them.
        self.open_lines: Callable[[str, BeaconState], int] = lambda _child, _beacon: -1
        # Called when a rank of this node is about to listen as the master of its store.
        self.on_master: Callable[[], None] = lambda: None
        # Called when a rank has saved its part of a checkpoint that is complete now.
        self.on_saved: Callable[[], None] = lambda: None

    def prepare(self, number: int, env: dict[str, str], secrets: list[str]) -> BeaconState:
        """Adds the variables that load the beacon to the environment of a process, which `name_rank` makes a rank."""
        if self._talk is None:
            self._talk = self._open()
        beacon = BeaconState(number, self._directory, secrets)
        folder = os.path.join(self._directory, FOLDER)
        # An empty entry in the path would mean the current directory.
        env["PYTHONPATH"] = os.pathsep.join(part for part in (folder, env.get("PYTHONPATH", "")) if part)
        env["ABOARD_BEACON"] = os.path.join(self._directory, SOCKET)
        env["ABOARD_STACKS"] = "%d:%d:%s" % (STACKS_SIGNAL, os.getpid(), beacon.stacks)
        if env.setdefault("TORCHELASTIC_ERROR_FILE", beacon.error_file) != beacon.error_file:
            beacon.error_file = ""
        return beacon

    def name_rank(self, child: str, beacon: BeaconState, await_port: int) -> dict[str, str]:
        """Takes the beacon's reports as this child's; returns the variables that tell it so.

        With `await_port`, the child does not connect to its master on that port before `release`.
        """
        self.states[child] = beacon
        awaited = {"ABOARD_AWAIT": "%d:%s" % (await_port, os.path.join(self._directory, LISTENING))}
        return {"ABOARD_CHILD": child, **(awaited if await_port else {})}

    def release(self, port: int) -> None:
        """Lets ranks connect to their master: rank 0 listens on its port. Repeating it is harmless."""
        replace_file(os.path.join(self._directory, LISTENING), b"%d" % port)

    def read_last_reports(self, child: str, code: int) -> LastWords:
        """Reads the rank's last reports before its exit is reported; falls back to torch's error file.

        Returns the stack of one that a signal killed, if it could write that.
        """
        beacon = self.states.get(child)
        if beacon is None:
            return {}
        self._drain(BATCH_SIZE * BATCH_SIZE)
        if code and not beacon.raised and beacon.error_file:
            raised = _read_error_file(beacon.error_file)
            if raised is not None:
                self._raise(child, beacon, time.time(), raised)
        beacon.pid = 0
        if beacon.lines != NO_LINES:
            os.close(beacon.lines)
            beacon.lines = NO_LINES
        stack = _read_fatal_stack(beacon.stacks) if code < 0 else ""
        return {"stack": mask_secrets(stack, beacon.secrets)} if stack else {}

    def steps(self) -> dict[str, dict[str, Any]]:
        """The latest step of each child that reported one, its trainer's metrics, and its new arrivals."""
        steps: dict[str, dict[str, Any]] = {}
        for name, beacon in self.states.items():
            figures = beacon.figures()
            if beacon.doing:
                figures["doing"] = beacon.doing
            if beacon.arrivals:
                figures["arrivals"], beacon.arrivals = beacon.arrivals, {}
            if figures:
                steps[name] = figures
        return steps

    def request_flights(self, children: list[str]) -> None:
        """Requests the flight records of ranks that listen; each replies with a report when it can."""
        for name in children:
            beacon = self.states.get(name)
            if beacon is not None and self._talk is not None:
                with contextlib.suppress(OSError):
                    self._talk.sendto(b"flight", beacon.request_path)

    def list_unanswered(self, children: list[str], since: float) -> list[str]:
        """Ranks that take requests and have not replied since then."""
        beacons = [(name, self.states[name]) for name in children if name in self.states]
        return [
            name
            for name, beacon in beacons
            if beacon.flight_received_at < since and os.path.exists(beacon.request_path)
        ]

    def are_ready(self) -> bool:
        """Whether every child that has a beacon has its process group."""
        return bool(self.states) and all(beacon.phase >= GROUP for beacon in self.states.values())

    def last_figures(self, child: str) -> dict[str, Any]:
        """What a child that has exited reported last: its step and its trainer's metrics; available once."""
        beacon = self.states.get(child)
        if beacon is None:
            return {}
        figures = beacon.figures()
        beacon.step = beacon.step_seconds = None
        return figures

    def close(self) -> None:
        if self._talk is not None:
            self._loop.remove_fd(self._talk.fileno())
            self._talk.close()

    def _open(self) -> socket.socket:
        folder = os.path.join(self._directory, FOLDER)
        os.mkdir(folder, 0o700)
        loader: Any = __spec__.loader
        for name in FILES:
            fd = os.open(os.path.join(folder, name + ".py"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(fd, "w", encoding="utf-8") as file:
                file.write(loader.get_source("aboard.agent.beacon." + name))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.setblocking(False)
        # The kernel reports the sender's pid: inside a container a process sees a different pid of its own.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.bind(os.path.join(self._directory, SOCKET))
        self._loop.on_readable(listener.fileno(), lambda: self._drain(BATCH_SIZE))
        return listener

    def _drain(self, most: int) -> None:
        if self._talk is None:
            return
        with contextlib.suppress(OSError):
            for _ in range(most):
                data, extra, _flags, _from = self._talk.recvmsg(DATAGRAM_BYTES, socket.CMSG_SPACE(CREDENTIALS.size))
                try:
                    frames.decode_with(self._take, (data, _read_sender_pid(extra)), "no report")
                except frames.FrameError:
                    self.malformed += 1

    def _take(self, report: tuple[bytes, int]) -> None:
        data, sender = report
        message = frames.unpack(data)
        child = message["child"]
        beacon = self.states[child]
        wall = _parse_wall_time(message["wall"])
        if "phase" in message:
            self._take_phase(child, beacon, wall, PHASES.index(message["phase"]))
            if sender and message["phase"] == PHASES[0]:
                self._launchers.look(child, sender)
        elif "logged" in message:
            self._take_line(child, beacon, message["logged"])
        elif "saved" in message:
            self._report_saved(child, beacon, wall, message["saved"])
        elif "doing" in message:
            beacon.doing = ACTIVITIES.index(message["doing"])
        elif "nested" in message:
            self._launchers.report(child, map(str, message["nested"]), wall)
        elif "joining" in message:
            self._take_store_request(beacon, message["joining"])
        elif "flight" in message:
            beacon.flight, beacon.flight_received_at = dict(message["flight"]), time.monotonic()
        elif not beacon.take_figures(message):
            raised = message["raised"]
            words = {key: str(raised[key]) for key in ("type", "message", "trace")}
            self._raise(child, beacon, wall, dict(words, error=str(raised.get("error", ""))))
        beacon.pid = sender or beacon.pid

    def _take_phase(self, child: str, beacon: BeaconState, wall: float, phase: int) -> None:
        if phase > beacon.phase:
            beacon.phase = phase
            self._emit({"kind": "phase", "child": child, "phase": PHASES[phase]}, wall)

    def _take_store_request(self, beacon: BeaconState, request: dict[str, Any]) -> None:
        beacon.joining = {key: kind(request[key]) for key, kind in JOIN_FIELDS.items() if request.get(key) is not None}
        beacon.joined_at = time.monotonic()
        if beacon.joining.get("master"):
            self.on_master()

    def _take_line(self, child: str, beacon: BeaconState, line: Any) -> None:
        data = json.dumps(dict(line)).encode("ascii") + b"\n"
        if len(data) > LINE_BYTES:
            raise ValueError("a line of %d bytes" % len(data))
        if beacon.lines == NO_LINES:
            beacon.lines = self.open_lines(child, beacon)
        os.write(beacon.lines, data)

    def _report_saved(self, child: str, beacon: BeaconState, wall: float, saved: dict[str, Any]) -> None:
        """Which files of a checkpoint are on this node: the record has them even if the node is lost."""
        beacon.saved += 1
        if beacon.saved <= SAVED_LIMIT:
            files = [str(name)[:SAVED_CHARS] for name in saved["files"][:SAVED_FILES]]
            name, serial = str(saved["checkpoint"])[:SAVED_CHARS], _parse_number(int(saved["serial"]))
            event: FilesSaved = {"kind": "saved", "child": child, "checkpoint": name, "serial": serial, "files": files}
            if "marker" in saved:
                marker = event["marker"] = frames.decode_fields(saved, {"marker": str})["marker"]
                if len(marker) != MARKER_DIGITS or set(marker) - set("0123456789abcdef"):
                    raise ValueError("no hash of a marker")
            self._emit(event, wall)
            self.on_saved()

    def _raise(self, child: str, beacon: BeaconState, wall: float, raised: dict[str, str]) -> None:
        beacon.raised += 1
        if beacon.raised <= RAISED_LIMIT:
            self._emit({"kind": "raised", "child": child, **_mask_exception(raised, beacon.secrets)}, wall)


def _read_sender_pid(extra: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= CREDENTIALS.size:
            return int(CREDENTIALS.unpack_from(data)[0])
    return 0


def _parse_wall_time(wall: Any) -> float:
    """When it was sent; a time that is far from our own clock is replaced by now."""
    now = time.time()
    sent_at = float(wall)
    return sent_at if now - OLDEST_SECONDS <= sent_at <= now else now


def _parse_number(value: Any) -> Any:
    if isfinite(value) and 0 <= value < MOST:
        return value
    raise ValueError("an invalid count: %r" % value)


def _parse_metrics(metrics: Any) -> dict[str, float]:
    """Keeps the metrics that are numbers."""
    values = {
        str(name): float(value) for name, value in list(metrics.items())[:MOST_METRICS] if len(name) <= METRIC_CHARS
    }
    return {name: value for name, value in values.items() if isfinite(value) and abs(value) < MOST}


def _mask_exception(raised: dict[str, str], secrets: list[str]) -> ExceptionText:
    """Removes the child's secrets and limits the length; a secret that is cut at the end is removed, too."""
    longest = max((len(secret) for secret in secrets), default=1)
    # Encoded, it is up to three times as long; of a very long one, only itself is worth the loss of text.
    edge = max(longest, min(Redactor(secrets).longest, EDGE_CHARS)) - 1
    message, trace = (mask_secrets(raised[key], secrets) for key in ("message", "trace"))
    if len(raised["message"]) >= MESSAGE_CHARS:
        message = message[: min(MESSAGE_CHARS, len(message) - edge)]
    if len(raised["trace"]) >= TRACE_CHARS:
        trace = trace[max(edge, len(trace) - TRACE_CHARS) :]
    fields: ExceptionText = {"type": raised["type"][:TYPE_CHARS], "message": message, "trace": trace}
    error = raised.get("error", "")
    if error and len(error) <= TRACE_CHARS:
        fields["error"] = mask_secrets(error, secrets)
    return fields


def _read_fatal_stack(path: str) -> str:
    """The main thread's part of what faulthandler wrote when a signal killed the rank: it comes last."""
    with contextlib.suppress(OSError):
        _, fatal, threads = _read_end(path).decode("utf-8", "replace").rpartition(FATAL)
        start = max(threads.rfind("Thread 0x"), threads.rfind("Current thread 0x"))
        if fatal and start >= 0:
            return "\n".join(line for line in threads[start : start + FATAL_CHARS].splitlines() if line.isprintable())
    return ""


def _read_error_file(path: str) -> dict[str, str] | None:
    """What torch's `record` wrote: {"message": {"message": "Type: text", "extraInfo": {"py_callstack": …}}}."""
    with contextlib.suppress(OSError, frames.FrameError):
        return frames.decode_with(_parse_error_file, _read_end(path), "no error file of torch")
    return None


def _parse_error_file(data: bytes) -> dict[str, str]:
    message = frames.unpack(data)["message"]
    # A process that died in C++ leaves only the message.
    text = message if isinstance(message, str) else str(message["message"])
    trace = "" if isinstance(message, str) else str(message["extraInfo"]["py_callstack"])
    kind, colon, rest = text.partition(": ")
    if not colon or not kind.replace(".", "").isidentifier():
        kind, rest = "", text
    return {"type": kind, "message": rest, "trace": trace}


def _read_end(path: str) -> bytes:
    """A rank may have put anything there: only a regular file is read, up to a limit."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(fd)
        start = max(0, about.st_size - ERROR_FILE_BYTES)
        return os.pread(fd, ERROR_FILE_BYTES, start) if stat.S_ISREG(about.st_mode) else b""
    finally:
        os.close(fd)
