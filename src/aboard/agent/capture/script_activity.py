"""Describes what a script does now: its line, and the command that it waits for."""

from __future__ import annotations

import time

from aboard.agent import process_tree, procfs
from aboard.agent.capture.script_line import find_script_line
from aboard.agent.secret_redaction import mask_secrets

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Any

SHELLS = ("sh", "bash", "dash", "ash", "busybox", "ksh", "zsh", "make")
MOST_CHARS = 300
CUT = "…"


def describe_activity(root: int, secrets: list[str]) -> dict[str, Any]:
    """The command is the first process below the shells, the last one started of several."""
    parents = process_tree.read_parents()
    shells = [root]
    while True:
        children = sorted((pid for pid in parents if parents[pid] == shells[-1]), key=process_tree.read_start_time)
        # A Python as the script's own process is its own command.
        if not children or procfs.read_name(shells[-1]) not in SHELLS:
            break
        shells.append(children[-1])
    pid = shells[-1]
    script, line = find_script_line(reversed(shells))
    command = mask_secrets(" ".join(procfs.read_command_line(pid)), secrets)
    started = process_tree.read_start_time(pid) / procfs.TICKS
    return {
        "line": line,
        "script": script,
        "command": command if len(command) <= MOST_CHARS else command[: MOST_CHARS - 1] + CUT,
        "seconds": round(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started), 1) if started else 0.0,
    }
