"""Ends launchers of a script that did not stop to be captured: they would start ranks on this node alone."""

from __future__ import annotations

import os
import signal
import time

from aboard.agent import process_tree, procfs
from aboard.agent.event_loop import EventLoop
from aboard.agent.inspect.launch_command import find_launch, find_start_elsewhere, split_python

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Two looks end a launcher within 2 s of its start, on a node with less than 700 processes.
LOOK_SECONDS = 0.7
LOOK_SHARE = 0.01
# A Python that will stop by itself has no children yet; on a slow file system it may take this long until then.
START_SECONDS = 60.0
MOST_REPORTS = 64
MOST_ROUNDS = 5
# The head would start the ranks outside of it.
CONTAINED = "it runs in a container"
# One of our own programs of this name would not have started it.
BYPASSED = "it is not the %s of PATH, or PATH was replaced"
ISOLATING = {"I": "ignores PYTHONPATH", "E": "ignores PYTHONPATH", "S": "runs no sitecustomize module"}


class EscapedLaunchers:
    """Looks at the processes of scripts all the time; `report` gets the child, the command and the reason."""

    def __init__(
        self,
        loop: EventLoop,
        folder: str,
        list_members: Callable[[], Mapping[str, set[int]]],
        report: Callable[[str, list[str], str], None],
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._list_members = list_members
        self._report = report
        # Those that were killed and reported, by pid and start time.
        self._reported: set[tuple[int, int]] = set()
        self._waits: Callable[[int], bool] = lambda _pid: False
        # When each launcher was seen first, by pid and start time.
        self._seen: dict[tuple[int, int], float] = {}

    def watch(self, waits: Callable[[int], bool]) -> None:
        """Starts; `waits` tells whether a process is captured."""
        self._waits = waits
        self._loop.later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        began = time.process_time()
        seen, self._seen = self._seen, {}
        for child, pids in self._list_members().items():
            for pid in pids:
                command = [] if self._waits(pid) else procfs.read_command_line(pid)
                words = find_launch(command)
                if words:
                    self._judge(child, pid, words, seen, "")
                elif is_bypassing(pid, command):
                    self._judge(child, pid, command, seen, BYPASSED % os.path.basename(command[0]))
        took = time.process_time() - began
        self._loop.later(max(LOOK_SECONDS, took / LOOK_SHARE), self._look)

    def _judge(self, child: str, pid: int, words: list[str], seen: Mapping[tuple[int, int], float], why: str) -> None:
        """Ends it at the second look, unless it is still on its way to be captured."""
        now = time.monotonic()
        process = (pid, process_tree.read_start_time(pid))
        first = self._seen[process] = seen.get(process, now)
        if process not in seen or process in self._reported or not process[1]:
            return
        why = why or find_reason(pid, self._folder)
        if not why:
            if now - first < START_SECONDS and not process_tree.list_descendants(pid):
                return
            why = "it did not run Aboard's sitecustomize module"
        if not kill_family(pid):
            why += "; it can't be killed"
        if len(self._reported) < MOST_REPORTS:
            self._report(child, words, why)
        self._reported.add(process)


def is_bypassing(pid: int, words: list[str]) -> bool:
    """Whether it starts ranks elsewhere, and our own program of its name has not started it."""
    if not words or os.path.basename(words[0]) != "srun":
        return bool(words and find_start_elsewhere(words))
    # Ours leaves srun no variable of ours.
    starts = any(find_launch(words[at:]) or split_python(words[at:])[0] for at in range(1, len(words)))
    starts = starts or any(word.endswith(".py") for word in words)
    return starts and b"ABOARD_CAPTURE" in procfs.parse_environ(procfs.read_environ(pid))


def find_reason(pid: int, folder: str) -> str:
    """Why a launcher will never stop to be captured; "" if it may."""
    owner = procfs.read_owner(pid)
    if owner not in (os.getuid(), -1):
        return "it runs as %s" % procfs.resolve_user(owner)
    if is_contained(pid):
        return CONTAINED
    env = procfs.parse_environ(procfs.read_environ(pid))
    if b"ABOARD_CAPTURE" not in env:
        return "its environment was emptied"
    option = _find_isolating_option(procfs.read_command_line(pid))
    if option:
        return "Python's option -%s %s" % (option, ISOLATING[option])
    if folder.encode() not in env.get(b"PYTHONPATH", b"").split(b":"):
        return "PYTHONPATH was replaced"
    return ""


def is_contained(pid: int) -> bool:
    """Whether a process sees another file system than ours."""
    namespace = procfs.read_namespace(pid, "mnt")
    return namespace not in (0, procfs.read_namespace(os.getpid(), "mnt"))


def kill_family(pid: int) -> bool:
    """Kills a process and its descendants; whether all of them ended or will."""
    family: set[int] = set()
    for _ in range(MOST_ROUNDS):
        # Stopped first: the children of a dead process would no longer be found as its own.
        found = {pid, *process_tree.list_descendants(pid)}
        if found <= family:
            break
        process_tree.send_signal(found - family, signal.SIGSTOP)
        family |= found
    process_tree.send_signal(family, signal.SIGKILL)
    return all(procfs.read_owner(each) in (os.getuid(), -1) for each in family)


def _find_isolating_option(words: list[str]) -> str:
    """The option of a Python's command line that keeps our module out of it."""
    _is_module, program = split_python(words)
    for word in words[1 : len(words) - len(program)]:
        for letter in word[1:] if word.startswith("-") and not word.startswith("--") else "":
            if letter in ISOLATING:
                return letter
            if letter in "mWX":
                break
    return ""
