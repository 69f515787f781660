"""Collects a snapshot of this node while a run is stuck, slow or dead: within two seconds, with what is available.

Whatever may block (a dead mount, a dead name server) is queried in a child, which reports each result at once and is
killed when the time is over. Meanwhile the supervisor waits for the ranks' stacks and flight records.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from aboard.agent import forked_work, frames
from aboard.agent.inspect import rank_stacks
from aboard.agent.inspect.snapshot_collector import collect_snapshot
from aboard.agent.procfs import read_stat

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from aboard.agent.beacon.report_receiver import BeaconReceiver, BeaconState
    from aboard.agent.event_loop import EventLoop

    Ranks = Mapping[str, tuple[int, BeaconState | None]]

POLL_SECONDS = 0.02
LONGEST_SECONDS = 10.0
# Ranks reply in milliseconds or not at all: one whose GIL is held never does.
FLIGHT_SECONDS = 0.8
# For sending the reply.
SPARE = 0.2
MOST_BYTES = 4 * 1024 * 1024


def answer_snapshot_request(
    loop: EventLoop,
    beacons: BeaconReceiver,
    ranks: Ranks,
    message: frames.Message,
    answer: Callable[[frames.Message], None],
) -> None:
    """Replies once, within the time in the message."""
    within = max(SPARE, min(float(message.get("within", 2.0)), LONGEST_SECONDS))
    _SnapshotRequest(loop, beacons, ranks, message, within - SPARE).begin(answer)


class _SnapshotRequest:
    """One request: three sources in parallel, none of which may delay it past the deadline."""

    def __init__(
        self, loop: EventLoop, beacons: BeaconReceiver, ranks: Ranks, message: frames.Message, seconds: float
    ) -> None:
        self._loop = loop
        self._beacons = beacons
        self._ranks = ranks
        self._message = message
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._requested_at = 0.0
        self._stacks: dict[str, Any] | None = None
        self._child = CollectorChild(loop)

    def begin(self, answer: Callable[[frames.Message], None]) -> None:
        roots = {name: _find_rank_process(root, beacon) for name, (root, beacon) in self._ranks.items() if root}
        tops = {name: root for name, (root, _beacon) in self._ranks.items() if root}
        self._child.begin(
            forked_work.wrap_json_lines(
                lambda report: collect_snapshot(self._message, roots, tops, self._seconds, report)
            )
        )
        self._requested_at = time.monotonic()
        self._beacons.request_flights(list(self._ranks))
        rank_stacks.collect_stacks(self._loop, self._ranks, self._seconds, self._take_stacks, gently=True)
        self._wait(answer)

    def _take_stacks(self, stacks_by_rank: dict[str, Any]) -> None:
        self._stacks = stacks_by_rank

    def _wait(self, answer: Callable[[frames.Message], None]) -> None:
        now = time.monotonic()
        has_flights = now - self._requested_at > FLIGHT_SECONDS or not self._beacons.list_unanswered(
            list(self._ranks), self._requested_at
        )
        if now < self._deadline and not (self._child.over and has_flights and self._stacks is not None):
            self._loop.later(POLL_SECONDS, lambda: self._wait(answer))
            return
        self._child.end()
        answer({"snapshot": self._build_snapshot()})

    def _build_snapshot(self) -> dict[str, Any]:
        snapshot: dict[str, Any] = {"wall": time.time(), "children": {}, "node": {}}
        for piece in forked_work.parse_json_lines(bytes(self._child.output)):
            snapshot["children"].update(piece.pop("children", {}))
            snapshot["node"].update(piece)
        for name, (root, beacon) in self._ranks.items():
            child = snapshot["children"].setdefault(name, {})
            child["stack"] = (self._stacks or {}).get(name) or {"why": "its stacks were not requested in time"}
            if beacon is not None:
                child.update(beacon.describe(self._requested_at))
            if not root:
                child["gone"] = True
        return snapshot


def _find_rank_process(root: int, beacon: BeaconState | None) -> int:
    """The rank's Python process; a rank may be a shell script that starts it."""
    if beacon is not None and beacon.pid and read_stat(beacon.pid):
        return beacon.pid
    return root


class CollectorChild:
    """A forked child that collects the passive part, and its results so far."""

    def __init__(self, loop: EventLoop) -> None:
        self.over = False
        self._loop = loop
        self._pid = 0
        self._fd = -1
        self.output = bytearray()

    def begin(self, work: Callable[[forked_work.Report], None]) -> None:
        self._fd, out = os.pipe()
        try:
            self._pid = forked_work.fork_worker(work, out)
        except OSError:
            self.over = True
            return
        finally:
            os.close(out)
        os.set_blocking(self._fd, False)
        self._loop.on_readable(self._fd, self._read)

    def end(self) -> None:
        """It is reaped with the ranks; one that hangs on a dead mount exits when the mount responds."""
        if self._pid and not self.over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._fd >= 0:
            self._loop.remove_fd(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        try:
            part = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self.output += part[: max(0, MOST_BYTES - len(self.output))]
        if not part:
            self.over = True
            self._loop.remove_fd(self._fd)
