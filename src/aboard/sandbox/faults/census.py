"""Who is who among the processes of a host."""

from collections.abc import Iterator
from pathlib import Path

from aboard.sandbox.host import Host
from aboard.sandbox.process import Process


def having(host: Host, text: bytes) -> list[Process]:
    """Every process of a host in whose environment this stands."""
    return [process for process, proc in _all(host) if text in _read(proc / "environ")]


def numbered(host: Host, number: int) -> list[Process]:
    """The process that has this number inside the host."""
    return [process for process, proc in _all(host) if _inner_number(proc) == number]


def stopped(process: Process) -> bool:
    """Whether a signal has stopped it."""
    return _read(Path(f"/proc/{process.pid}/stat")).rpartition(b")")[2].split()[:1] == [b"T"]


def _all(host: Host) -> Iterator[tuple[Process, Path]]:
    for pid in host.pids():
        try:
            yield Process.of(pid), Path(f"/proc/{pid}")
        except ProcessLookupError:
            continue


def _inner_number(proc: Path) -> int:
    """Its last number: the machine numbers a process first, then the hull, then the host."""
    lines = _read(proc / "status").split(b"\n")
    return next((int(line.split()[-1]) for line in lines if line.startswith(b"NSpid:")), 0)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        # It has ended since, or is ending.
        return b""
