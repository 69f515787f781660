"""Stacks of processes without a beacon, by py-spy, which reads their memory and never stops them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time

from aboard.agent import frames
from aboard.agent.procfs import parse_environ, read_environ, read_kernel_file, read_link

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Stack = str | dict[str, str]

NAME = "py-spy"
ENVIRONMENTS = (b"VIRTUAL_ENV", b"CONDA_PREFIX")
# A running process changes while it is read; another try is usually consistent.
TRIES = 4
# The usual number of ranks on a node; each takes a core for a tenth of a second.
AT_ONCE = 8
TEXT_LIMIT = 64 * 1024
MOST_FRAMES = 100
TIMED_OUT = "py-spy timed out"
DENIED_WORDS = ("permission denied", "operation not permitted")
# Yama's setting that restricts which process may trace another: kernel.org, admin-guide/LSM/Yama.
SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
ANYBODY = b"0"


def dump_stacks(pids: Iterable[int], seconds: float) -> dict[str, Stack]:
    """Stacks by process, in faulthandler's format; otherwise the reason, with a command on a second line."""
    results: dict[str, Stack] = {str(pid): {"why": TIMED_OUT} for pid in pids}
    end = time.monotonic() + seconds
    gate = threading.Semaphore(AT_ONCE)

    def dump(pid: str) -> None:
        with gate:
            results[pid] = _dump_stack(int(pid), end)

    # Threads, since one of them may wait for ever: py-spy reads the program's own files, which may be on a dead mount.
    workers = [threading.Thread(target=dump, args=(pid,), daemon=True) for pid in results]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
    return dict(results)


def format_stack(threads: Iterable[dict[str, Any]], pid: int) -> str:
    """Converts the output of `py-spy dump --json` to faulthandler's format: the main thread comes last."""
    ordered = sorted(threads, key=lambda thread: thread.get("os_thread_id") == pid)
    text = "\n".join(_format_thread(thread) for thread in ordered)
    return text[-TEXT_LIMIT:]


def _format_thread(thread: dict[str, Any]) -> str:
    lines = ["Thread 0x%016x (most recent call first):" % int(thread.get("thread_id") or 0)]
    for frame in thread["frames"][:MOST_FRAMES]:
        # Since Python 3.11 py-spy reports the class too; faulthandler doesn't.
        name = str(frame["name"]).rpartition(".")[2]
        lines.append('  File "%s", line %d in %s' % (frame["filename"], int(frame["line"]), name))
    return "".join(letter for letter in "\n".join(lines) if letter == "\n" or letter.isprintable()) + "\n"


def _dump_stack(pid: int, end: float) -> Stack:
    program = _find_py_spy(pid)
    if not program:
        return {"why": "py-spy is not installed there\n%s -m pip install py-spy" % _find_interpreter(pid)}
    error_text = ""
    for _try in range(TRIES):
        left = end - time.monotonic()
        if left <= 0:
            break
        try:
            completed = subprocess.run(
                # Does not disturb the process: without --nonblocking each thread would be stopped for a moment.
                [program, "dump", "--json", "--nonblocking", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=left,
                check=False,
            )
            if completed.returncode == 0:
                return frames.decode_with(
                    lambda data: format_stack(json.loads(data), pid), completed.stdout, "no stacks"
                )
        except (OSError, frames.FrameError) as error:
            error_text = type(error).__name__
            continue
        except subprocess.TimeoutExpired:
            break
        error_text = completed.stderr.decode("utf-8", "replace").strip()
        if any(word in error_text.lower() for word in DENIED_WORDS):
            return {"why": _explain_denial(pid, program)}
    return {"why": "py-spy could not read it: %s" % error_text.partition("\n")[0][:200] if error_text else TIMED_OUT}


def _explain_denial(pid: int, program: str) -> str:
    if read_kernel_file(SCOPE, 8).strip() not in (b"", ANYBODY):
        return "the kernel lets no process look at another (Yama)\nsudo sysctl kernel.yama.ptrace_scope=0"
    return "py-spy may not look at it\nsudo %s dump --pid %d" % (program, pid)


def _find_py_spy(pid: int) -> str:
    """Next to its own Python, else on our PATH. Never another user's file: we may be root."""
    folders: list[str] = []
    if os.stat("/proc/%d" % pid).st_uid == os.getuid():
        env = parse_environ(read_environ(pid))
        folders += [os.path.join(os.fsdecode(value), "bin") for name, value in env.items() if name in ENVIRONMENTS]
        paths = (_read_first_argument(pid), read_link("/proc/%d/exe" % pid))
        folders += [os.path.dirname(path) for path in paths if path.startswith("/")]
    folders += os.environ.get("PATH", os.defpath).split(os.pathsep)
    folders.append(os.path.expanduser("~/.local/bin"))
    return shutil.which(NAME, path=os.pathsep.join(folders)) or ""


def _find_interpreter(pid: int) -> str:
    """Its interpreter as it was called: in a virtual environment that is a link to another one."""
    word = _read_first_argument(pid)
    return word if word.startswith("/") else read_link("/proc/%d/exe" % pid) or "python3"


def _read_first_argument(pid: int) -> str:
    return os.fsdecode(read_kernel_file("/proc/%d/cmdline" % pid, 4096).partition(b"\0")[0])
