"""What a bridge does for its supervisor and guard: continues them if stopped, and cleans up if they were killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from aboard.agent import frames, process_tree, run_directory
from aboard.agent.supervisor.guard_process import KILLED_CODE, SWEEP_SECONDS
from aboard.agent.supervisor.rank_group import kill_group

# As a supervisor's last event is packed.
ENDED = b'"kind":"ended"'
# An event is short; a longer frame is output, which may contain anything.
EVENT_BYTES = 65536


class SupervisorWatch:
    """A run's supervisor and its guard, by pid and start time."""

    def __init__(self, run: str, supervisor: int) -> None:
        self._run = run
        guard = process_tree.read_parents().get(supervisor, 0)
        self._agents = {"supervisor": supervisor}
        # A guard that died before has left the supervisor to us or to init.
        if guard not in (0, 1, os.getpid()):
            self._agents["guard"] = guard
        self._started = {name: process_tree.read_start_time(pid) for name, pid in self._agents.items()}
        self.ended = False

    def note_frame(self, body: bytes) -> None:
        """Notes that the supervisor has ended the run by itself; its connection may then close."""
        if len(body) < EVENT_BYTES and body.startswith(b'{"event":') and ENDED in body:
            self.ended = True

    def continue_stopped(self) -> None:
        """Continues what a signal has stopped."""
        for name, pid in self._agents.items():
            process_tree.continue_stopped(pid, self._started[name])

    def is_alive(self, name: str) -> bool:
        pid = self._agents.get(name, 0)
        return (
            pid > 0 and process_tree.read_start_time(pid) == self._started[name] and process_tree.read_state(pid) != ""
        )

    def reap(self) -> None:
        """Reaps those that have exited as our children, before this watch is dropped."""
        for pid in self._agents.values():
            _reap(pid)

    def clean_up(self, spared: Iterable[int]) -> frames.Message:
        """Ends what is left of the run; returns what was killed, each with the signal, 0 where it is unknown."""
        lost = {"supervisor": 0}
        unfinished = has_directory(self._run)
        guard_code = _reap(self._agents.get("guard", 0))
        if guard_code is not None and guard_code > KILLED_CODE:
            lost["supervisor"] = guard_code - KILLED_CODE
        elif unfinished and not self.is_alive("guard"):
            lost["guard"] = max(0, -(guard_code or 0))
        cleaned = clean_up_run(self._run, spared)
        # Last: a process whose threads are still exiting looks dead, but can't be reaped yet.
        code = _reap(self._agents["supervisor"])
        if code is not None:
            lost["supervisor"] = max(0, -code)
        return {"lost": lost, **cleaned}


def clean_up_run(run: str, spared: Iterable[int]) -> frames.Message:
    """Ends what is left of a run that has no supervisor any more, and removes its directory."""
    from aboard.agent.container.container_cleanup import remove_containers  # noqa: PLC0415 - seldom needed
    from aboard.agent.supervisor.temporary_directories import remove_dead_directories  # noqa: PLC0415 - as above

    killed, left = process_tree.kill_run(run, SWEEP_SECONDS, lambda: None, spared)
    kill_group(run, anywhere=True)
    directory = _find_directory(run)
    if directory is not None:
        if remove_containers(run, directory):
            # A process that Podman started for it.
            left |= process_tree.kill_run(run, SWEEP_SECONDS, lambda: None, spared)[1]
        remove_dead_directories(directory)
        run_directory.remove_directory(directory)
    for pid in killed:
        _reap(pid)
    return {"killed": len(killed), "stubborn": sorted(left)}


def has_directory(run: str) -> bool:
    """Whether nobody has removed the run's directory yet."""
    directory = _find_directory(run)
    return directory is not None and os.path.isdir(directory)


def _find_directory(run: str) -> str | None:
    with contextlib.suppress(OSError):
        return run_directory.resolve_directory(run)
    return None


def _reap(pid: int) -> int | None:
    """The exit code of a child of ours that has exited, else None."""
    with contextlib.suppress(ChildProcessError):
        if pid > 0:
            reaped, status = os.waitpid(pid, os.WNOHANG)
            return os.waitstatus_to_exitcode(status) if reaped else None
    return None
