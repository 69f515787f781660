"""Where the ranks are in their code: each writes its threads' stacks into a file.

The beacon's thread writes it, if it exists and gets the GIL; otherwise the beacon's signal makes faulthandler do so.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import time

from aboard.agent.beacon.report_receiver import PHASES, STACKS_SIGNAL, BeaconState
from aboard.agent.event_loop import EventLoop
from aboard.agent.procfs import PARENT, STATE, read_stat

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Answer = Callable[[dict[str, Any]], None]

# The name of the beacon's thread: agent/beacon/aboard_beacon_flight.py.
BEACON_THREAD = b"beacon-listener"
POLL_SECONDS = 0.02
LONGEST_SECONDS = 10.0
TEXT_LIMIT = 64 * 1024
# All of them go into one frame.
ALL_LIMIT = 2 * 1024 * 1024
# Python's dump reads frames as they are: those of a process that runs change meanwhile, and about one dump in some
# hundreds ends in a segmentation fault (seen with 3.11). One that sleeps in this many samples is at rest.
STILL_LOOKS = 3
# The share of the time for the beacon's thread: if it does not reply, another thread holds the GIL.
ASKED_PART = 0.3
# A busy process is interrupted itself, the lesser risk, and only after its rendezvous, when imports are done.
BUSY_PART = 0.5
GROUP_PHASE = PHASES.index("group")
ENDED_STATES = (b"", b"Z", b"X")
ENDED = "it has exited"
NO_HANDLER = "process %d does not listen to the beacon's signal"
STATE_REASONS = {
    b"T": "it is stopped",
    b"t": "it is being traced",
    b"D": "it waits in the kernel, for a disk or a device",
}


def collect_stacks(
    loop: EventLoop,
    ranks: Mapping[str, tuple[int, BeaconState | None]],
    within: float,
    answer: Answer,
    *,
    gently: bool = False,
) -> None:
    """Replies once, with the stacks or the reason why there are none, for each child's first process.

    With `gently`, a busy rank that has no process group yet is not interrupted.
    """
    _StacksRequest(loop, ranks, within, answer, GROUP_PHASE if gently else -1).poll()


class _StacksRequest:
    """Ranks whose beacon was asked, ranks to interrupt once they are at rest, and interrupted ranks."""

    def __init__(
        self,
        loop: EventLoop,
        ranks: Mapping[str, tuple[int, BeaconState | None]],
        within: float,
        answer: Answer,
        phase: int,
    ) -> None:
        self._loop = loop
        self._answer = answer
        self._phase = phase
        self._limit = min(TEXT_LIMIT, ALL_LIMIT // max(1, len(ranks)))
        self._within = max(0.0, min(within, LONGEST_SECONDS))
        self._began = time.monotonic()
        self._found: dict[str, Any] = {}
        self._asked: dict[str, _StacksDump] = {}
        self._moving: dict[str, _MovingRank] = {}
        self._interrupted: dict[str, _StacksDump] = {}
        for name, (root, beacon) in ranks.items():
            why = _explain_unfit(root, beacon)
            if why or beacon is None:
                self._found[name] = {"why": why}
            elif _ask_beacon(beacon):
                self._asked[name] = _StacksDump(beacon, self._limit)
            else:
                self._moving[name] = _MovingRank(beacon, phase)

    def poll(self) -> None:
        elapsed = time.monotonic() - self._began
        late = elapsed >= self._within
        self._collect(self._asked, late=late)
        if elapsed >= ASKED_PART * self._within:
            for name in [name for name, dump in self._asked.items() if not dump.begun]:
                self._moving[name] = _MovingRank(self._asked.pop(name).beacon, self._phase)
        if not late:
            self._interrupt(busy=elapsed >= BUSY_PART * self._within)
        self._collect(self._interrupted, late=late)
        if late:
            for name, each in self._moving.items():
                self._found[name] = {"why": "process %d is busy importing" % each.beacon.pid}
        if not late and (self._asked or self._moving or self._interrupted):
            self._loop.later(POLL_SECONDS, self.poll)
        else:
            self._answer(self._found)

    def _interrupt(self, *, busy: bool) -> None:
        for name in [name for name, each in self._moving.items() if each.ready(busy=busy)]:
            rank = self._moving.pop(name)
            if rank.over:
                # Its pid may be reused by now, and 0 would be our own group.
                self._found[name] = {"why": ENDED}
                continue
            if not _has_handler(rank.beacon.pid):
                # It had one when it was asked; Python removes its handler at exit, and the signal would kill it.
                self._found[name] = {"why": NO_HANDLER % rank.beacon.pid}
                continue
            self._interrupted[name] = _StacksDump(rank.beacon, self._limit)
            with contextlib.suppress(OSError):
                _truncate_stacks(rank.beacon)
                _send_stacks_signal(rank.beacon.pid, busy=not rank.is_still)

    def _collect(self, dumps: dict[str, _StacksDump], *, late: bool) -> None:
        for name, dump in list(dumps.items()):
            # A rank that exits meanwhile writes nothing more; a failing run must not wait for each of its ranks.
            if dump.whole() or late or dump.over:
                self._found[name] = dump.text() or {"why": ENDED if dump.over else dump.why(self._within)}
                del dumps[name]


class _MovingRank:
    """A rank that is not yet known to be at rest."""

    def __init__(self, beacon: BeaconState, phase: int) -> None:
        self.beacon = beacon
        self._pid = beacon.pid
        self._phase = phase
        self._still = 0

    @property
    def over(self) -> bool:
        """Whether it has exited since it was selected."""
        return self.beacon.pid != self._pid or _read_state(self._pid) in ENDED_STATES

    @property
    def is_still(self) -> bool:
        return self._still >= STILL_LOOKS

    def ready(self, *, busy: bool) -> bool:
        """Samples it again; with `busy`, its time to come to rest is over."""
        self._still = 0 if _read_state(self.beacon.pid) == b"R" else self._still + 1
        return self.is_still or (busy and self.beacon.phase >= self._phase)


class _StacksDump:
    """One rank's pending stack dump; complete when it stops growing."""

    def __init__(self, beacon: BeaconState, limit: int) -> None:
        self.beacon = beacon
        self._path = beacon.stacks
        self._pid = beacon.pid
        self._limit = limit
        self._size = 0

    @property
    def begun(self) -> bool:
        return self._size > 0

    @property
    def over(self) -> bool:
        return _read_state(self._pid) in ENDED_STATES

    def whole(self) -> bool:
        before = self._size
        with contextlib.suppress(OSError):
            self._size = os.stat(self._path).st_size
        return 0 < self._size == before

    def text(self) -> str:
        """The text, cut to its end if too long: the main thread comes last."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            file.seek(max(0, self._size - self._limit))
            text = file.read(self._limit).decode("utf-8", "replace")
            return "".join(letter for letter in text if letter == "\n" or letter.isprintable())
        return ""

    def why(self, within: float) -> str:
        state = STATE_REASONS.get(_read_state(self._pid))
        return "%s did not write its stacks within %g s%s" % (
            "process %d" % self._pid,
            within,
            ": " + state if state else "",
        )


def _ask_beacon(beacon: BeaconState) -> bool:
    """Asks the beacon's thread, if it exists: it starts when the rank first uses its store."""
    try:
        _truncate_stacks(beacon)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as connection:
            connection.sendto(b"stacks", beacon.request_path)
    except OSError:
        return False
    return True


def _truncate_stacks(beacon: BeaconState) -> None:
    """Empties the file; the rank opened it for appending, so its next write starts at the beginning."""
    os.truncate(beacon.stacks, 0)


def _send_stacks_signal(pid: int, *, busy: bool) -> None:
    """Signals the beacon's own thread where it exists: a signal interrupts poll(2) and similar calls of its thread.

    TCPStore treats that as a failed connection, and waits for seconds before it retries.
    """
    if busy:
        ctypes.CDLL(None).tgkill(pid, pid, STACKS_SIGNAL)
        return
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/%d/task" % pid):
            with contextlib.suppress(OSError), open("/proc/%d/task/%s/comm" % (pid, task), "rb") as name:
                if name.read().strip() == BEACON_THREAD:
                    ctypes.CDLL(None).tgkill(pid, int(task), STACKS_SIGNAL)
                    return
    os.kill(pid, STACKS_SIGNAL)


def _explain_unfit(root: int, beacon: BeaconState | None) -> str:
    """Why a rank must not get the signal: without a handler it would die."""
    if not root:
        return "it is not running"
    if beacon is None or not beacon.pid:
        return "it has no beacon"
    if not _is_descendant(beacon.pid, root):
        return "the process with the beacon has exited"
    if not _has_handler(beacon.pid):
        return NO_HANDLER % beacon.pid
    if not _has_open_file(beacon.pid, beacon.stacks):
        # A script may close unknown descriptors; the stacks would go into whatever has the number now.
        return "process %d has closed the beacon's file" % beacon.pid
    return ""


def _has_handler(pid: int) -> bool:
    caught = b"0"
    with contextlib.suppress(OSError), open("/proc/%d/status" % pid, "rb") as status:
        for line in status:
            if line.startswith(b"SigCgt:"):
                caught = line.split()[1]
    return bool(int(caught, 16) >> (STACKS_SIGNAL - 1) & 1)


def _has_open_file(pid: int, path: str) -> bool:
    """Compares inodes, since the path of a file that is open in a container may read differently from outside."""
    name = os.path.basename(path)
    with contextlib.suppress(OSError):
        file = os.stat(path)
        for number in os.listdir("/proc/%d/fd" % pid):
            with contextlib.suppress(OSError):
                # Only those with its name: a file on a dead mount would block us.
                opened = "/proc/%d/fd/%s" % (pid, number)
                if os.path.basename(os.readlink(opened)) == name and os.path.samestat(os.stat(opened), file):
                    return True
    return False


def _is_descendant(pid: int, root: int) -> bool:
    """Whether the process is still one of the child's; its pid may be reused by now."""
    for _ in range(64):
        if pid == root:
            return _read_state(root) not in ENDED_STATES
        fields = read_stat(pid)
        if not fields or int(fields[PARENT]) <= 1:
            return False
        pid = int(fields[PARENT])
    return False


def _read_state(pid: int) -> bytes:
    return (read_stat(pid) or [b""])[STATE]
