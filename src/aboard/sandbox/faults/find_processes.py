"""Finds processes of a host by pid or environment."""

from collections.abc import Iterator
from pathlib import Path

from aboard.sandbox.host import Host
from aboard.sandbox.namespaces.process_identity import ProcessIdentity


def find_by_environment(host: Host, text: bytes) -> list[ProcessIdentity]:
    """The processes of a host whose environment contains this text."""
    return [process for process, proc in _list_processes(host) if text in _read_bytes(proc / "environ")]


def find_by_pid(host: Host, number: int) -> list[ProcessIdentity]:
    """The process that has this pid inside the host."""
    return [process for process, proc in _list_processes(host) if _read_inner_pid(proc) == number]


def is_stopped(process: ProcessIdentity) -> bool:
    """Whether it is stopped by a signal."""
    return _read_bytes(Path(f"/proc/{process.pid}/stat")).rpartition(b")")[2].split()[:1] == [b"T"]


def _list_processes(host: Host) -> Iterator[tuple[ProcessIdentity, Path]]:
    for pid in host.pids():
        try:
            yield ProcessIdentity.of(pid), Path(f"/proc/{pid}")
        except ProcessLookupError:
            continue


def _read_inner_pid(proc: Path) -> int:
    """Its innermost pid: NSpid lists the machine's pid, then the outer namespace's, then the host's."""
    lines = _read_bytes(proc / "status").split(b"\n")
    return next((int(line.split()[-1]) for line in lines if line.startswith(b"NSpid:")), 0)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        # It has exited, or is exiting.
        return b""
