"""Reads faults from the kernel log: out of memory, failed disks and links, GPU errors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

LINES = 20
JOURNAL_LINES = 2000
# The log of a machine with hundreds of cores has some megabytes, newest last.
MOST_BYTES = 8 * 1024 * 1024
# A GPU error is logged for each process that it kills: within this time the same one on a device counts once.
SAME_SECONDS = 10.0
_GPU_WORDS = (b"NVRM: Xid", b"SXid (", b"fallen off the bus", b"RmInitAdapter failed")
# Messages of the kernel that name a fault.
_FAULT_WORDS = (
    b"Out of memory", b"oom-kill", b"Killed process", b"hung_task", b"blocked for more than", b"not responding",
    b"I/O error", b"NIC Link is Down", b"Link is Down", b"nf_conntrack: table full", b"mce:",
)  # fmt: skip


def read_kernel_log() -> list[str] | None:
    """The fault lines of the kernel log; None where it may not be read."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return select_fault_lines(_read_records(fd), time.monotonic())
    finally:
        os.close(fd)


def read_journal(within: float) -> list[str] | None:
    """The same from the journal: most systems hide the log itself from users, but let some groups read this."""
    import subprocess  # noqa: PLC0415 - most never need it

    argv = ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--lines=%d" % JOURNAL_LINES]
    argv.append("--output=short-monotonic")
    null = subprocess.DEVNULL
    try:
        output = subprocess.run(
            argv, stdin=null, stdout=subprocess.PIPE, stderr=null, timeout=within, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    # A user without access gets no lines and no error.
    return select_fault_lines(_parse_journal(output), time.monotonic()) if output.strip() else None


def select_fault_lines(records: Iterable[bytes], now: float) -> list[str]:
    """The last fault lines and those of GPUs, each preceded by its age in seconds."""
    others: list[tuple[float, bytes]] = []
    gpus: list[tuple[float, bytes]] = []
    last: dict[bytes, float] = {}
    for record in records:
        head, _, rest = record.partition(b";")
        text = rest.split(b"\n")[0]
        is_gpu = any(word in text for word in _GPU_WORDS)
        if not is_gpu and not any(word in text for word in _FAULT_WORDS):
            continue
        stamp = int(head.split(b",")[2]) / 1e6
        if not is_gpu:
            others.append((stamp, text))
            continue
        device = text.split(b",")[0]
        if stamp - last.get(device, -SAME_SECONDS) >= SAME_SECONDS:
            gpus.append((stamp, text))
        last[device] = stamp
    lines = sorted(others[-LINES:] + gpus[-LINES:])
    return ["%.1f %s" % (now - stamp, text.decode("utf-8", "replace")[:300]) for stamp, text in lines]


def _parse_journal(output: bytes) -> Iterator[bytes]:
    """Lines as `[   12.345678] host kernel: …`, in the form that the kernel gives them."""
    for line in output.split(b"\n"):
        stamp, _, rest = line.lstrip(b"[ ").partition(b"] ")
        whole, _, part = stamp.partition(b".")
        _host, _, text = rest.partition(b" kernel: ")
        if whole.isdigit() and part.isdigit() and text:
            yield b"6,0,%d,-;%s" % (int(float(stamp) * 1e6), text)


def _read_records(fd: int) -> Iterator[bytes]:
    """Yields one record per read, until a read would block."""
    total = 0
    while total < MOST_BYTES:
        try:
            record = os.read(fd, 8192)
        except BrokenPipeError:
            # It was overwritten before we read it: the next read continues with the oldest one.
            continue
        except OSError:
            return
        if record.count(b",", 0, record.find(b";")) < 2:  # noqa: PLR2004 - level, number, time and flags: kmsg's ABI
            return
        total += len(record)
        yield record
