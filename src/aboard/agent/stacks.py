"""Where the ranks are in their code: the beacon's signal makes each write its threads' stacks into a file."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

from aboard.agent.beacons import STACKS_SIGNAL, Heard
from aboard.agent.loop import Loop

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Answer = Callable[[dict[str, Any]], None]

# What the beacon calls its thread: agent/beacon/aboard_beacon_torch.py.
EAR = b"aboard-ear"
LOOK_SECONDS = 0.02
LONGEST_SECONDS = 10.0
TEXT_LIMIT = 64 * 1024
# All of them go into one frame.
ALL_LIMIT = 2 * 1024 * 1024
STATES = {b"T": "it is stopped", b"t": "it is being traced", b"D": "it waits in the kernel, for a disk or a device"}


def take(loop: Loop, ranks: Mapping[str, tuple[int, Heard | None]], within: float, answer: Answer) -> None:
    """Answers once, with the stacks or the reason why there are none, for each child's first process."""
    found: dict[str, Any] = {}
    waiting: dict[str, _Dump] = {}
    limit = min(TEXT_LIMIT, ALL_LIMIT // max(1, len(ranks)))
    for name, (root, heard) in ranks.items():
        why = _unfit(root, heard)
        if why or heard is None:
            found[name] = {"why": why}
        else:
            waiting[name] = _Dump(heard, limit)
    deadline = time.monotonic() + max(0.0, min(within, LONGEST_SECONDS))

    def look() -> None:
        late = time.monotonic() >= deadline
        for name, dump in list(waiting.items()):
            if dump.whole() or late:
                found[name] = dump.text() or {"why": dump.why(within)}
                del waiting[name]
        if waiting:
            loop.later(LOOK_SECONDS, look)
        else:
            answer(found)

    look()


class _Dump:
    """One rank's stacks, asked for and awaited; it is whole when it grows no more."""

    def __init__(self, heard: Heard, limit: int) -> None:
        self._path = heard.stacks
        self._pid = heard.pid
        self._limit = limit
        self._size = 0
        with contextlib.suppress(OSError):
            # The rank appends, so that what is written next is at its beginning.
            os.truncate(self._path, 0)
            _signal(self._pid)

    def whole(self) -> bool:
        before = self._size
        with contextlib.suppress(OSError):
            self._size = os.stat(self._path).st_size
        return 0 < self._size == before

    def text(self) -> str:
        """The end of it, if it is too long: the main thread comes last."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            file.seek(max(0, self._size - self._limit))
            text = file.read(self._limit).decode("utf-8", "replace")
            return "".join(letter for letter in text if letter == "\n" or letter.isprintable())
        return ""

    def why(self, within: float) -> str:
        state = STATES.get(_state(self._pid))
        return "%s did not write its stacks within %g s%s" % (
            "process %d" % self._pid,
            within,
            ": " + state if state else "",
        )


def _signal(pid: int) -> None:
    """To the beacon's own thread where there is one: poll(2) and its kind end when a signal comes to their thread.

    TCPStore takes that for a failed connection, and waits for seconds before it tries again.
    """
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/%d/task" % pid):
            with contextlib.suppress(OSError), open("/proc/%d/task/%s/comm" % (pid, task), "rb") as name:
                if name.read().strip() == EAR:
                    ctypes.CDLL(None).tgkill(pid, int(task), STACKS_SIGNAL)
                    return
    os.kill(pid, STACKS_SIGNAL)


def _unfit(root: int, heard: Heard | None) -> str:
    """Why a rank must not be sent the signal: one that has no handler for it would die of it."""
    if not root:
        return "it is not running"
    if heard is None or not heard.pid:
        return "it has no beacon"
    if not _below(heard.pid, root):
        return "the process that had the beacon is gone"
    caught = b"0"
    with contextlib.suppress(OSError), open("/proc/%d/status" % heard.pid, "rb") as status:
        for line in status:
            if line.startswith(b"SigCgt:"):
                caught = line.split()[1]
    if not int(caught, 16) >> (STACKS_SIGNAL - 1) & 1:
        return "process %d does not listen to the beacon's signal" % heard.pid
    if heard.stacks not in _open_files(heard.pid):
        # A script may close what it doesn't know; the stacks would go into whatever has the number now.
        return "process %d has closed the beacon's file" % heard.pid
    return ""


def _open_files(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for number in os.listdir("/proc/%d/fd" % pid):
            with contextlib.suppress(OSError):
                found.add(os.readlink("/proc/%d/fd/%s" % (pid, number)))
    return found


def _below(pid: int, root: int) -> bool:
    """Whether the process is still one of the child's; its number may be someone else's by now."""
    for _ in range(64):
        if pid == root:
            return _state(root) not in (b"", b"Z", b"X")
        fields = _fields(pid)
        if len(fields) < 2 or int(fields[1]) <= 1:  # noqa: PLR2004 - state and parent
            return False
        pid = int(fields[1])
    return False


def _state(pid: int) -> bytes:
    return (_fields(pid) or [b""])[0]


def _fields(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError), open("/proc/%d/stat" % pid, "rb") as stat:
        return stat.read().rpartition(b")")[2].split()
    return []
