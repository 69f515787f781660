"""Beside every rank of the collective test: hears the roster, ends a phase that takes too long, and reports the end."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
import traceback

from aboard.node_scripts.rank_roster import Roster, open_listener

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

_SHOWN_FRAMES = 8
_MAX_ADDRESSES = 64
# Lines of NCCL's log that the parser knows; each kind a few times, since the log is long on many channels.
_KNOWN_LINES = (
    "NCCL WARN", "NCCL version", "Using network", "GPU Direct RDMA", " via ", "NET/Plugin", "NCCL_NET",
    "NCCL_TOPO_FILE", "topology file", "Bootstrap", "NET plugin", "NET/", "NVLS multicast", "Connected all", "Init ",
)  # fmt: skip
_MOST_OF_A_KIND, _MOST_LINES, _LINE_CHARS = 40, 300, 500
# In /proc/net/tcp.
_ESTABLISHED, _CONNECTING, _STUCK_RETRIES = "01", "02", 3


class RankWatch(threading.Thread):
    """Ends the process when a phase is late: C++ that waits can't be stopped in any other way.

    `findings` are what the rank has measured so far, and go into the report; `log_folder` is where NCCL writes its log.
    """

    def __init__(self, task: Mapping[str, Any], token: str) -> None:
        super().__init__(daemon=True)
        self.task, self.rank, self.world = task, task["rank"], task["world"]
        self.findings: dict[str, Any] = {}
        self.log_folder = ""
        self.store_port = 0
        self.may_go, self.may_end = threading.Event(), threading.Event()
        self._token = token
        self._phase, self._deadline = "meet", time.monotonic() + task["meet"]
        self._ended = threading.Lock()
        self._roster: Roster | None = None
        self._connection: socket.socket | None = None

    def enter_phase(self, phase: str, seconds: float) -> None:
        self._phase, self._deadline = phase, time.monotonic() + seconds

    def meet_others(self) -> None:
        if self.rank == 0:
            listener = open_listener(self.task["port"])
            self._roster = Roster(listener, self._token, self.world, self.task["meet"], self.task["load"])
            self._roster.start()
        place = ("127.0.0.1" if self.rank == 0 else self.task["address"], self.task["port"])
        while True:
            try:
                # Refused is an answer: rank 0 is not there yet. Silence for so long is none.
                self._connection = socket.create_connection(place, timeout=self.task["silence"])
                break
            except OSError as error:
                if not isinstance(error, ConnectionRefusedError) or time.monotonic() > self._deadline:
                    why = "dropped" if isinstance(error, socket.timeout) else error.strerror or str(error)
                    self.finish(error="no connection to %s port %d: %s" % (*place, why), blocked=[place[0]])
            time.sleep(0.1)
        self._connection.settimeout(0.1)
        self.send(here=True)
        self.start()

    def send(self, **message: object) -> None:
        """Tells the roster; it may be gone."""
        try:
            if self._connection is not None:
                line = json.dumps(dict(message, token=self._token, rank=self.rank))
                self._connection.sendall(line.encode() + b"\n")
        except OSError:
            pass

    def run(self) -> None:
        connection = self._connection
        assert connection is not None  # noqa: S101 - started by meet_others
        text = b""
        while True:
            try:
                data = connection.recv(65536)
                if not data and not self.may_end.is_set():
                    self.finish(error="lost the connection to rank 0", told=True)
                text += data
            except socket.timeout:
                pass
            except OSError as error:
                self.finish(error="lost the connection to rank 0: %s" % error.strerror, told=True)
            *lines, text = text.split(b"\n")
            for line in lines:
                self._obey(json.loads(line))
            if time.monotonic() > self._deadline:
                self.finish(error="waited in vain in phase %s" % self._phase, late=True, stack=list_main_frames())

    def _obey(self, message: Mapping[str, Any]) -> None:
        if "go" in message:
            self.store_port = message["go"]
            self.may_go.set()
        if "end" in message:
            self.may_end.set()
        if "off" in message:
            self.finish(error="others failed", told=True, off=message["off"])

    def finish(self, **more: object) -> NoReturn:
        """Prints the report and ends the process: once, from whichever thread comes first; the other must not go on."""
        self._ended.acquire()
        report = {"rank": self.rank, "phase": self._phase, "blocked": list_blocked_addresses(), **self.findings, **more}
        if self._phase != "done" and not report.get("told"):
            self.send(failed=self._phase)
        if self._roster is not None:
            self._roster.over.wait(1.0 if self._phase != "done" else 5.0)
        report["log"] = collect_nccl_log(self.log_folder)
        sys.stdout.write("\n" + json.dumps(report) + "\n")
        sys.stdout.flush()
        os._exit(0)


def list_main_frames() -> list[str]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the only way to see them
    return traceback.format_stack(frame)[-_SHOWN_FRAMES:] if frame else []


def list_blocked_addresses() -> list[str]:
    """Those that a connection of this process can't be made to, or that don't acknowledge what they are sent."""
    own, found = set(), set()
    try:
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                own.add(os.readlink("/proc/self/fd/" + fd))
        for name in ("tcp", "tcp6"):
            with open("/proc/self/net/" + name, encoding="ascii") as file:
                for line in file.readlines()[1:]:
                    part = line.split()
                    state, timer, retries = part[3], part[5], int(part[6], 16)
                    stuck = state == _ESTABLISHED and timer.startswith("01:") and retries >= _STUCK_RETRIES
                    if "socket:[%s]" % part[9] in own and (state == _CONNECTING or stuck):
                        found.add(decode_address(part[2].split(":")[0]))
    except (OSError, ValueError, IndexError):
        pass
    return sorted(found)[:_MAX_ADDRESSES]


def decode_address(text: str) -> str:
    """An address as the kernel prints it: hexadecimal words in the machine's byte order."""
    words = [struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8)]
    if len(words) == 1:
        return socket.inet_ntop(socket.AF_INET, words[0])
    return socket.inet_ntop(socket.AF_INET6, b"".join(words)).replace("::ffff:", "")


def collect_nccl_log(folder: str) -> list[str]:
    """The lines that the parser knows; removes the folder."""
    lines: list[str] = []
    counts: dict[str, int] = {}
    if not folder:
        return lines
    try:
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                for line in file:
                    kind = next((word for word in _KNOWN_LINES if word in line), None)
                    if kind is not None:
                        counts[kind] = counts.get(kind, 0) + 1
                        if counts[kind] <= _MOST_OF_A_KIND and len(lines) < _MOST_LINES:
                            lines.append(line.rstrip("\n")[:_LINE_CHARS])
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        pass
    return lines
