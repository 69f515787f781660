"""Finds launchers that ranks have started: each would start a world of its own.

A command line may contain secrets: the child's own are masked, and only the launcher's command is sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from aboard.agent.procfs import read_command_line
from aboard.agent.secret_redaction import mask_secrets

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from aboard.agent.supervisor_events import Emit

MOST_WORDS, WORD_CHARS, MOST_CHARS = 64, 300, 2000
CUT = "…"
# A process that is no launcher in these first looks will not become one, unless it is the rank's own.
LOOKS = 3
# How long after a start a launcher may appear: later, processes are read at the pace of the measurements.
SOON_SECONDS = 120.0


class NestedLaunchers:
    """Reports the first launcher of each child, whoever saw it."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._secrets: dict[str, list[str]] = {}
        self._looks: dict[int, int] = {}
        self._reported: set[str] = set()
        self._started_at = 0.0

    def watch(self, child: str, secrets: list[str]) -> None:
        self._secrets[child] = secrets
        self._started_at = time.monotonic()

    @property
    def soon(self) -> bool:
        """Whether ranks have just started, so that most launchers would appear now."""
        return time.monotonic() - self._started_at < SOON_SECONDS

    def scan(self, members: Mapping[str, set[int]], roots: Mapping[str, int]) -> None:
        """Reads the command lines of each child's processes."""
        looks, self._looks = self._looks, {}
        for child, pids in members.items():
            if child not in self._secrets or child in self._reported:
                continue
            for pid in pids:
                self._looks[pid] = looks.get(pid, 0) + 1
                if self._looks[pid] <= LOOKS or pid == roots.get(child):
                    self.look(child, pid)

    def look(self, child: str, pid: int) -> None:
        """Reads one command line."""
        # Late, so that it does not delay a start.
        from aboard.agent.inspect.launch_command import find_launch  # noqa: PLC0415 - the reason is above

        words = find_launch(read_command_line(pid))
        if words:
            self.report(child, words)

    def report(self, child: str, words: Iterable[str], wall: float | None = None) -> None:
        if child in self._reported or child not in self._secrets:
            return
        self._reported.add(child)
        command = mask_command(words, self._secrets[child])
        self._emit({"kind": "nested", "child": child, "command": command}, wall)


def mask_command(words: Iterable[str], secrets: list[str]) -> list[str]:
    """A command without secrets, cut to what an event may have."""
    command: list[str] = []
    room = MOST_CHARS
    for word in list(words)[: MOST_WORDS + 1]:
        masked = mask_secrets(word, secrets)
        room -= len(masked)
        if len(command) == MOST_WORDS or len(masked) > WORD_CHARS or room < 0:
            command.append(CUT)
            break
        command.append(masked)
    return command
