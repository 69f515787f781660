"""Starts and stops our programs that run in a host while a fault is active.

Such a program is this Python, moved into the host's namespaces: the host needs no Python for it, and faults of the
host's Python do not affect it. It is a child of the host's init, so it dies with the host. Any process can find it by
its environment.
"""

import os
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NoReturn

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.faults.find_processes import find_by_environment
from aboard.sandbox.faults.listening_jobs import hold_port, serve_slow_sshd
from aboard.sandbox.faults.network.packet_queue import delay_packets
from aboard.sandbox.host import Host
from aboard.sandbox.namespaces import helper_program, system_calls
from aboard.sandbox.namespaces.process_identity import ProcessIdentity
from aboard.sandbox.sandbox import Sandbox

JOBS: dict[str, Callable[..., NoReturn]] = {
    "delay": delay_packets,
    "hold-port": hold_port,
    "slow-sshd": serve_slow_sshd,
}
_MODULE = "aboard.sandbox.faults.resident_program"
_MARK = "ABOARD_FAULT"
_START_TIMEOUT = 20.0
_END_TIMEOUT = 20.0


def start_resident(box: Sandbox, host: Host, key: str, job: str, about: dict[str, Any]) -> str:
    """Starts a job in a host and returns its first line, which it writes when it is ready."""
    end_resident(host, key)
    first = box.first_process(host.name)
    spec = {"target": asdict(first) if first else {}, "job": job, "about": about}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with helper_program.start_helper(_MODULE, spec, env={_MARK: key}, **streams) as starter:
        if starter.stdout is None:
            raise AssertionError("Popen was given PIPE")
        ready, _, _ = select.select([starter.stdout], [], [], _START_TIMEOUT)
        line: str = starter.stdout.readline().decode().strip() if ready else ""
        if not ready:
            starter.kill()
    word, _, rest = line.partition(" ")
    if word != "ready":
        end_resident(host, key)
        seen = rest or "no reply"
        raise SandboxError(sandbox.FAULT, f"{host.name}: {job}: {seen}")
    return rest


def is_resident_alive(host: Host, key: str) -> bool:
    """Whether the program with this key is running."""
    return bool(_find_residents(host, key))


def end_resident(host: Host, key: str) -> None:
    """Kills the program with this key, if there is one."""
    for process in _find_residents(host, key):
        if not process.kill(timeout=_END_TIMEOUT):
            seen = f"{host.name}: process {process.pid} does not terminate"
            raise SandboxError(sandbox.STUCK, seen, "usual")


def main(handle: int) -> None:
    """Entry point of the started program: enters the host, detaches from its parent and runs the job."""
    spec = helper_program.read_spec(handle)
    target = ProcessIdentity(**spec["target"])
    pidfd = os.pidfd_open(target.pid)
    if not target.alive():
        sys.exit("this host is off")
    system_calls.set_namespaces(pidfd, system_calls.ALL_NAMESPACES)
    os.close(pidfd)
    child = os.fork()
    if child:
        # The child is in the host's PID namespace, so the host's init adopts the grandchild.
        os.waitpid(child, 0)
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    _run_job(spec)


def _run_job(spec: dict[str, Any]) -> NoReturn:
    try:
        os.chdir("/")
        JOBS[spec["job"]](_say_ready, **spec["about"])
    except OSError as error:
        os.write(1, f"failed {error.strerror}\n".encode())
    finally:
        os._exit(1)


def _say_ready(what: str) -> None:
    os.write(1, f"ready {what}\n".encode())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.close(null)


def _find_residents(host: Host, key: str) -> list[ProcessIdentity]:
    return find_by_environment(host, f"{_MARK}={key}".encode())
