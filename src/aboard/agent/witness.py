"""What is to be seen on this node while a run is stuck, slow or dead: within two seconds, with whatever can be had.

Whatever may block (a dead mount, a dead name server) is asked in a child, which tells piece by piece and is killed when
the time is over; the ranks' own words, stacks and flight records, are awaited meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from aboard.agent import frames, stacks, telling
from aboard.agent.onlooker import look
from aboard.agent.processes import stat

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from aboard.agent.beacons import Beacons, Heard
    from aboard.agent.loop import Loop

    Ranks = Mapping[str, tuple[int, Heard | None]]

LOOK_SECONDS = 0.02
LONGEST_SECONDS = 10.0
# The ranks answer in milliseconds or not at all: a rank whose interpreter is held answers nothing.
FLIGHT_SECONDS = 0.8
# What the answer itself takes.
SPARE = 0.2
MOST_BYTES = 4 * 1024 * 1024


def take(
    loop: Loop, beacons: Beacons, ranks: Ranks, message: frames.Message, answer: Callable[[frames.Message], None]
) -> None:
    """Answers once, within the time that the message gives."""
    within = max(SPARE, min(float(message.get("within", 2.0)), LONGEST_SECONDS))
    _Witness(loop, beacons, ranks, message, within - SPARE).begin(answer)


class _Witness:
    """One question: three sources side by side, none of which is waited for beyond the deadline."""

    def __init__(self, loop: Loop, beacons: Beacons, ranks: Ranks, message: frames.Message, seconds: float) -> None:
        self._loop = loop
        self._beacons = beacons
        self._ranks = ranks
        self._message = message
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._asked = 0.0
        self._stacks: dict[str, Any] | None = None
        self._child = _Child(loop)

    def begin(self, answer: Callable[[frames.Message], None]) -> None:
        roots = {name: _process(root, heard) for name, (root, heard) in self._ranks.items() if root}
        tops = {name: root for name, (root, _heard) in self._ranks.items() if root}
        self._child.begin(telling.in_pieces(lambda tell: look(self._message, roots, tops, self._seconds, tell)))
        self._asked = time.monotonic()
        self._beacons.ask_flights(list(self._ranks))
        stacks.take(self._loop, self._ranks, self._seconds, self._take_stacks, gently=True)
        self._wait(answer)

    def _take_stacks(self, found: dict[str, Any]) -> None:
        self._stacks = found

    def _wait(self, answer: Callable[[frames.Message], None]) -> None:
        now = time.monotonic()
        flown = now - self._asked > FLIGHT_SECONDS or not self._beacons.unanswered(list(self._ranks), self._asked)
        if now < self._deadline and not (self._child.over and flown and self._stacks is not None):
            self._loop.later(LOOK_SECONDS, lambda: self._wait(answer))
            return
        self._child.end()
        answer({"witness": self._told()})

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = {"wall": time.time(), "children": {}, "node": {}}
        for piece in telling.pieces(bytes(self._child.said)):
            told["children"].update(piece.pop("children", {}))
            told["node"].update(piece)
        for name, (root, heard) in self._ranks.items():
            child = told["children"].setdefault(name, {})
            child["stack"] = (self._stacks or {}).get(name) or {"why": "its stacks were not asked for in time"}
            if heard is not None:
                child.update(heard.told(self._asked))
            if not root:
                child["gone"] = True
        return told


def _process(root: int, heard: Heard | None) -> int:
    """The process in which the rank's own Python is; a rank may be a shell script that starts it."""
    if heard is not None and heard.pid and stat(heard.pid):
        return heard.pid
    return root


class _Child:
    """A copy of us that looks around, and what it has said so far."""

    def __init__(self, loop: Loop) -> None:
        self.over = False
        self._loop = loop
        self._pid = 0
        self._fd = -1
        self.said = bytearray()

    def begin(self, work: Callable[[telling.Tell], None]) -> None:
        self._fd, out = os.pipe()
        try:
            self._pid = telling.fork(work, out)
        except OSError:
            self.over = True
            return
        finally:
            os.close(out)
        os.set_blocking(self._fd, False)
        self._loop.on_readable(self._fd, self._read)

    def end(self) -> None:
        """It is reaped with the ranks; one that hangs on a dead mount goes when that answers."""
        if self._pid and not self.over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._fd >= 0:
            self._loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        try:
            part = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self.said += part[: max(0, MOST_BYTES - len(self.said))]
        if not part:
            self.over = True
            self._loop.forget(self._fd)
