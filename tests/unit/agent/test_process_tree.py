"""Whose process is whose: nothing that a run started can hide from its end."""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

from deadlines import wait_until

from aboard.agent import process_tree

FORKS = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""
THREADS = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
os.write(1, b"ready\\n")
ctypes.CDLL(None).pthread_exit(None)
"""


def _start(source: str, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-ISc", source], stdout=subprocess.PIPE, env={**os.environ, **env})


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]


def test_descendants_are_found_across_sessions() -> None:
    """A child's child in a session of its own is below us; we ourselves are not."""
    with _start(FORKS) as process:
        grandchild = int(_first_line(process))
        assert {process.pid, grandchild} <= process_tree.list_descendants(os.getpid())
        assert process_tree.list_descendants(process.pid) == {grandchild}
        assert os.getpid() not in process_tree.list_descendants(os.getpid())
        process_tree.send_signal([grandchild, process.pid], signal.SIGKILL)


def test_the_dead_are_not_counted() -> None:
    """A zombie that nobody has reaped yet is not alive, and to signal who is gone is no error."""
    with _start("print()") as process:
        _first_line(process)
        wait_until(lambda: _state(process.pid) == "Z", 5)
        assert process.pid not in process_tree.read_parents()
        process.wait()
        process_tree.send_signal([process.pid], signal.SIGTERM)


def test_a_process_without_its_first_thread_is_alive() -> None:
    """Its first thread has left, so /proc shows a zombie; its other threads still hold a GPU."""
    with _start(THREADS) as process:
        _first_line(process)
        wait_until(lambda: _state(process.pid) == "Z", 5)
        assert process.pid in process_tree.read_parents()
        process.kill()


def test_a_run_is_found_by_its_mark_and_no_other_by_a_part_of_it() -> None:
    """The whole value counts: run `a1` is not run `a10`."""
    run = f"test-{secrets.token_hex(4)}"
    with (
        _start("print(flush=True); import time; time.sleep(60)", ABOARD_RUN_ID=run) as own,
        _start("print(flush=True); import time; time.sleep(60)", ABOARD_RUN_ID=f"{run}0") as other,
    ):
        _first_line(own)
        _first_line(other)
        assert process_tree.find_run_processes(run) == {own.pid}
        own.kill()
        other.kill()


ESCAPE = """
import os, sys
from aboard.agent import process_tree
process_tree.mark_process(sys.argv[1])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sh", ["sh", "-c", "exec env -i sh -c 'echo $$; exec sleep 60'"], {})
    os._exit(0)
"""


def test_a_mark_survives_an_emptied_environment() -> None:
    """A double fork in a session of its own, started by `env -i`, still belongs to its run, and to no other."""
    run = f"test-{secrets.token_hex(4)}"
    with subprocess.Popen([sys.executable, "-c", ESCAPE, run], stdout=subprocess.PIPE) as process:
        escaped = int(_first_line(process))
        try:
            wait_until(lambda: Path(f"/proc/{escaped}/comm").read_text("ascii") == "sleep\n", 5)
            assert b"ABOARD" not in Path(f"/proc/{escaped}/environ").read_bytes()
            wait_until(lambda: process_tree.find_run_processes(run) == {escaped}, 5)
            assert not process_tree.find_run_processes(f"{run}0")
        finally:
            process_tree.send_signal([escaped], signal.SIGKILL)
    wait_until(lambda: not process_tree.find_run_processes(run), 5)


def test_only_a_stopped_process_is_continued() -> None:
    """And only the one that is meant: its pid may belong to another by then."""
    with subprocess.Popen(["sleep", "60"]) as process:
        started = process_tree.read_start_time(process.pid)
        assert not process_tree.continue_stopped(process.pid, started)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: _state(process.pid) == "T", 5)
        assert not process_tree.continue_stopped(process.pid, started + 1)
        assert process_tree.continue_stopped(process.pid, started)
        wait_until(lambda: _state(process.pid) == "S", 5)
        process.kill()
    assert not process_tree.continue_stopped(process.pid, started)


def test_a_sweep_returns_what_would_not_die() -> None:
    """Here: nothing would, so the set is empty and the marked process is gone."""
    run = f"test-{secrets.token_hex(4)}"
    script = f"""
import sys; sys.path[:0] = {sys.path!r}
import os, subprocess
from aboard.agent import process_tree
subprocess.Popen(["setsid", "sleep", "60"], env={{**os.environ, "ABOARD_RUN_ID": {run!r}}})
print(process_tree.kill_run({run!r}, 5.0, process_tree.reap_children)[1])
"""
    with _start(script) as process:
        assert _first_line(process) == b"set()\n"
        assert not process_tree.find_run_processes(run)
