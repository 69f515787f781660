"""What earlier runs left on this node: processes, directories without a supervisor, ranks of other launchers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

from aboard.agent import frames, process_tree, run_directory
from aboard.agent.procfs import PAGE, parse_environ, read_environ, read_kernel_file, read_owner

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aboard.agent.requests import RequestRunner

# Stands for a run of which only the mark of its processes is left.
UNKNOWN_RUN = "marked-%012x"
# A request of a check, which ends by itself.
CHECK_RUN = "ask-"
# What makes a process a rank to torchrun, DeepSpeed and mpirun wrappers alike.
RANK_WORDS = ("RANK", "MASTER_ADDR")
MOST = 200
# A supervisor makes its directory a moment before it listens in it.
BEGIN_SECONDS = 10.0
CLEAR_SECONDS = 5.0
# Init programs that adopt orphans; any other first process may be their launcher.
REAPERS = (b"systemd", b"init", b"sshd", b"tini", b"docker-init", b"dumb-init", b"catatonit", b"s6-svscan")


def answer_leftovers_request(
    runner: RequestRunner, message: frames.Message, reply: Callable[[frames.Message], None]
) -> None:
    """Works in a child with a timeout: reading the environment of a process stuck in the kernel can block."""
    runs = [str(run) for run in message.get("runs") or ()]

    def work() -> bytes:
        return json.dumps(clear_leftovers(runs) if message["op"] == "clear" else find_leftovers()).encode()

    def complete(outcome: frames.Message) -> None:
        reply(json.loads(outcome["stdout"]) if outcome["code"] == 0 else {"error": "its processes cannot be inspected"})

    runner.fork(message, work, complete)


def find_leftovers() -> frames.Message:
    """Lists leftovers. Only program names leave the node: environments and arguments may contain secrets."""
    table = _ProcessTable()
    runs, active = table.runs()
    return {
        "active": {
            run: {"pids": pids[:MOST], "rss": sum(map(_read_memory, pids))}
            for run, pids in sorted(active.items())[:MOST]
        },
        "runs": {
            run: {"pids": pids[:MOST], "what": _describe_program(pids[0])} for run, pids in sorted(runs.items())[:MOST]
        },
        "places": [run for run in run_directory.list_runs() if not _has_supervisor(run)][:MOST],
        "strays": table.strays()[:MOST],
        "intruder": _describe_intruder(),
    }


def clear_leftovers(runs: list[str]) -> frames.Message:
    """Kills what is left of these runs and removes their directories; leaves a run with a supervisor alone."""
    killed: set[int] = set()
    deadline = time.monotonic() + CLEAR_SECONDS
    while True:
        left = {pid for run, pids in _ProcessTable().runs()[0].items() if run in runs for pid in pids}
        if not left or time.monotonic() > deadline:
            break
        killed |= left
        process_tree.send_signal(left, signal.SIGKILL)
        # The kernel needs a moment to remove a killed process.
        time.sleep(0.01)
    for run in run_directory.list_runs():
        if run in runs and not left and not _has_supervisor(run):
            from aboard.agent.container.container_cleanup import remove_containers  # noqa: PLC0415 - seldom needed

            directory = run_directory.resolve_directory(run)
            if remove_containers(run, directory):
                # A process that Podman started for it.
                process_tree.send_signal(process_tree.find_run_processes(run), signal.SIGKILL)
            run_directory.remove_directory(directory)
    return {"ended": len(killed - left), "left": sorted(left)}


class _ProcessTable:
    """A snapshot of this user's processes, except us and our ancestors."""

    def __init__(self) -> None:
        self._table = process_tree.read_parents()
        above = {os.getpid(), *process_tree.list_ancestors(os.getpid(), self._table)}
        self._marks = {
            pid: _read_marks(pid) for pid in self._table if pid not in above and read_owner(pid) == os.getuid()
        }

    def runs(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Processes by the run id in their environment or by their mark: of runs without a supervisor, and with one."""
        pids_by_run: dict[str, list[int]] = {}
        active: dict[str, list[int]] = {}
        named = {marks[process_tree.RUN_ID] for marks in self._marks.values() if process_tree.RUN_ID in marks}
        known = {process_tree.compute_mark(run): run for run in (*run_directory.list_runs(), *named)}
        for pid, marks in sorted(self._marks.items()):
            run = marks.get(process_tree.RUN_ID)
            mark = 0 if run else process_tree.read_mark(pid)
            if mark:
                run = known.get(mark) or UNKNOWN_RUN % (mark % 2**process_tree.MARK_BITS)
            # An agent above it is its supervisor or bridge, even one with another /tmp than ours.
            if run:
                owned = any(_is_agent_process(above) for above in process_tree.list_ancestors(pid, self._table))
                (active if owned else pids_by_run).setdefault(run, []).append(pid)
        for run in [run for run in pids_by_run if _has_supervisor(run)]:
            active.setdefault(run, []).extend(pids_by_run.pop(run))
        return pids_by_run, {run: pids for run, pids in active.items() if not run.startswith(CHECK_RUN)}

    def strays(self) -> list[list[Any]]:
        """Ranks that Aboard did not start: the topmost of each tree, whether its launcher is gone, and its program."""
        strays = {
            pid
            for pid, marks in self._marks.items()
            if process_tree.RUN_ID not in marks and all(word in marks for word in RANK_WORDS)
        }
        return [
            [pid, self._orphan(pid), _describe_program(pid)]
            for pid in sorted(strays)
            if self._table.get(pid, 0) not in strays
        ]

    def _orphan(self, pid: int) -> bool:
        parent = self._table.get(pid, 0)
        return parent == 0 or (
            parent == 1 and (read_owner(1) != os.getuid() or read_kernel_file("/proc/1/comm").strip() in REAPERS)
        )


def find_active_run(pid: int) -> str:
    """The run that a process belongs to, if it has a supervisor; "" for any other process."""
    run = _read_marks(pid).get(process_tree.RUN_ID, "")
    mark = 0 if run else process_tree.read_mark(pid)
    if mark:
        run = next((each for each in run_directory.list_runs() if process_tree.compute_mark(each) == mark), "")
    return run if run and not run.startswith(CHECK_RUN) and _has_supervisor(run) else ""


def _describe_intruder() -> dict[str, Any] | None:
    """Who has taken this user's place in /tmp, if anybody has."""
    intruder = run_directory.describe_intruder()
    if intruder is not None:
        import pwd  # noqa: PLC0415 - seldom needed

        with contextlib.suppress(KeyError):
            intruder["user"] = pwd.getpwuid(intruder["uid"]).pw_name
    return intruder


def _has_supervisor(run: str) -> bool:
    """Whether the run still has an owner; if in doubt, it has."""
    if run.startswith(CHECK_RUN):
        # A request of a check: its id contains the agent's pid.
        agent = run.split("-")[1]
        return agent.isdigit() and _is_agent_process(int(agent))
    import socket  # noqa: PLC0415 - costs 5 ms, wasted where nothing is left

    try:
        directory = run_directory.resolve_directory(run)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(os.path.join(directory, run_directory.SOCKET))
    except (ConnectionRefusedError, run_directory.UnsafePlace):
        # A name that cannot be a run's has no supervisor.
        return False
    except FileNotFoundError:
        return _is_young_directory(run)
    except OSError:
        # Any other error proves nothing.
        return True
    return True


def _is_young_directory(run: str) -> bool:
    try:
        return time.time() - os.stat(run_directory.resolve_directory(run)).st_mtime < BEGIN_SECONDS
    except OSError:
        return False


def _read_marks(pid: int) -> dict[str, str]:
    """Only the variables of its environment that identify its run."""
    env, names = parse_environ(read_environ(pid)), (process_tree.RUN_ID, *RANK_WORDS)
    values = {name: env[name.encode()].decode("ascii", "replace") for name in names if name.encode() in env}
    return {name: value[: run_directory.MAX_RUN_ID_CHARS] for name, value in values.items()}


def _is_agent_process(pid: int) -> bool:
    words = read_kernel_file("/proc/%d/cmdline" % pid).split(b"\0")
    return b"-ISc" in words and any(b"aboard: python" in word for word in words)


def _describe_program(pid: int) -> str:
    """The program and its script, as in "python3 train.py", without the arguments."""
    words = [word.decode("utf-8", "replace") for word in read_kernel_file("/proc/%d/cmdline" % pid).split(b"\0")]
    parts = [os.path.basename(words[0])]
    if len(words) > 1 and not words[1].startswith("-"):
        parts.append(os.path.basename(words[1]))
    return " ".join(parts)[:80]


def _read_memory(pid: int) -> int:
    """Its resident memory in bytes, without pages that it shares: statm in proc(5)."""
    words = read_kernel_file("/proc/%d/statm" % pid).split()
    return (int(words[1]) - int(words[2])) * PAGE if len(words) > 2 else 0  # noqa: PLR2004 - its third word
