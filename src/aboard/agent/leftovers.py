"""What earlier runs left on this node: processes by run id, directories without a keeper, ranks of other launchers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

from aboard.agent import frames, place, tree

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aboard.agent.asks import Asks

# What makes a process a rank to torchrun, DeepSpeed and mpirun wrappers alike.
RANK_WORDS = ("RANK", "MASTER_ADDR")
MOST = 200
ENVIRON_LIMIT = 1024 * 1024
# A keeper makes its directory a moment before it listens in it.
BEGIN_SECONDS = 10.0
CLEAR_SECONDS = 5.0
# Who takes in orphans where it is the first process; any other first process may be their launcher.
REAPERS = (b"systemd", b"init", b"sshd", b"tini", b"docker-init", b"dumb-init", b"catatonit", b"s6-svscan")


def take(asks: Asks, message: frames.Message, reply: Callable[[frames.Message], None]) -> None:
    """In a child with a time-out: the environment of a process that is stuck in the kernel can block its reader."""
    wanted = [str(run) for run in message.get("runs") or ()]

    def work() -> bytes:
        return json.dumps(clear(wanted) if message["op"] == "clear" else find()).encode()

    def tell(outcome: frames.Message) -> None:
        reply(json.loads(outcome["stdout"]) if outcome["code"] == 0 else {"error": "its processes can't be looked at"})

    asks.fork(message, work, tell)


def find() -> frames.Message:
    """Only the names of programs leave the node: environments and arguments hold secrets."""
    look = _Look()
    runs = look.runs()
    return {
        "runs": {run: {"pids": pids[:MOST], "what": _what(pids[0])} for run, pids in sorted(runs.items())[:MOST]},
        "places": [run for run in place.runs() if not _kept(run)][:MOST],
        "strays": look.strays()[:MOST],
    }


def clear(wanted: list[str]) -> frames.Message:
    """Kills what is left of these runs and removes their directories; a run that has a keeper is left alone."""
    ended: set[int] = set()
    deadline = time.monotonic() + CLEAR_SECONDS
    while True:
        left = {pid for run, pids in _Look().runs().items() if run in wanted for pid in pids}
        if not left or time.monotonic() > deadline:
            break
        ended |= left
        tree.send(left, signal.SIGKILL)
        # The kernel needs a moment to take a killed process down.
        time.sleep(0.01)
    for run in place.runs():
        if run in wanted and not left and not _kept(run):
            place.clear(place.directory(run))
    return {"ended": len(ended - left), "left": sorted(left)}


class _Look:
    """One look at this user's processes, without us and those above us."""

    def __init__(self) -> None:
        self._table = tree.parents()
        above = {os.getpid(), *self._above(os.getpid())}
        self._marks = {pid: _marks(pid) for pid in self._table if pid not in above and _uid(pid) == os.getuid()}

    def runs(self) -> dict[str, list[int]]:
        """Processes by the run that they carry in their environment, of runs that nobody keeps any more."""
        found: dict[str, list[int]] = {}
        for pid, marks in sorted(self._marks.items()):
            run = marks.get(tree.RUN_ID)
            # Our own kind above it is its keeper or its bridge, also one whose /tmp is another than ours.
            if run and not any(_is_agent(above) for above in self._above(pid)):
                found.setdefault(run, []).append(pid)
        return {run: pids for run, pids in found.items() if not _kept(run)}

    def strays(self) -> list[list[Any]]:
        """Ranks that we didn't start: the topmost of each tree, whether its launcher is gone, and what it is."""
        strays = {
            pid
            for pid, marks in self._marks.items()
            if tree.RUN_ID not in marks and all(word in marks for word in RANK_WORDS)
        }
        return [[pid, self._orphan(pid), _what(pid)] for pid in sorted(strays) if self._table.get(pid, 0) not in strays]

    def _above(self, pid: int) -> list[int]:
        found: list[int] = []
        while self._table.get(pid, 0) > 0 and self._table[pid] not in found:
            pid = self._table[pid]
            found.append(pid)
        return found

    def _orphan(self, pid: int) -> bool:
        parent = self._table.get(pid, 0)
        return parent == 0 or (parent == 1 and (_uid(1) != os.getuid() or _read(1, "comm").strip() in REAPERS))


def _kept(run: str) -> bool:
    """Whether somebody still answers for the run; in doubt somebody does."""
    if run.startswith("ask-"):
        # A question of a check: its agent is in its name.
        agent = run.split("-")[1]
        return agent.isdigit() and _is_agent(int(agent))
    import socket  # noqa: PLC0415 - costs 5 ms, for nothing where nothing is left

    try:
        directory = place.directory(run)
        with socket.socket(socket.AF_UNIX) as talk:
            talk.settimeout(1)
            talk.connect(os.path.join(directory, place.SOCKET))
    except ConnectionRefusedError:
        return False
    except FileNotFoundError:
        return _young(run)
    except OSError:
        # A name that can't be a run's has no keeper; whatever else went wrong proves nothing.
        return not _impossible(run)
    return True


def _young(run: str) -> bool:
    try:
        return time.time() - os.stat(place.directory(run)).st_mtime < BEGIN_SECONDS
    except OSError:
        return False


def _impossible(run: str) -> bool:
    try:
        place.directory(run)
    except place.UnsafePlace:
        return True
    except OSError:
        return False
    return False


def _marks(pid: int) -> dict[str, str]:
    """Of its environment, the few words that tell whose it is."""
    marks = {}
    for entry in _read(pid, "environ").split(b"\0"):
        name, _, value = entry.partition(b"=")
        word = name.decode("ascii", "replace")
        if word == tree.RUN_ID or word in RANK_WORDS:
            marks[word] = value.decode("ascii", "replace")[: place.LONGEST]
    return marks


def _is_agent(pid: int) -> bool:
    words = _read(pid, "cmdline").split(b"\0")
    return b"-ISc" in words and any(b"aboard: python" in word for word in words)


def _what(pid: int) -> str:
    """The program and its script, as in "python3 train.py", without the arguments."""
    words = [word.decode("utf-8", "replace") for word in _read(pid, "cmdline").split(b"\0")]
    shown = [os.path.basename(words[0])]
    if len(words) > 1 and not words[1].startswith("-"):
        shown.append(os.path.basename(words[1]))
    return " ".join(shown)[:80]


def _uid(pid: int) -> int:
    try:
        return os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return -1


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError), open("/proc/%d/%s" % (pid, name), "rb") as file:
        return file.read(ENVIRON_LIMIT)
    return b""
