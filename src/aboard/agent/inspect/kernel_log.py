"""What the kernel's log says of who is at fault: memory that was out, disks and links that failed, GPUs."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LINES = 20
JOURNAL_LINES = 2000
# The log of a machine with hundreds of cores has some megabytes, and what is newest comes last.
MOST_BYTES = 8 * 1024 * 1024
# A GPU's error is told of each process that it ends: the same of the same device is one for so long.
SAME_SECONDS = 10.0
_GPU_WORDS = (b"NVRM: Xid", b"SXid (", b"fallen off the bus", b"RmInitAdapter failed")
# What a kernel says when it is at fault, or knows who is.
_FAULT_WORDS = [b"Out of memory", b"oom-kill", b"Killed process", b"hung_task", b"blocked for more than"]
_FAULT_WORDS += [
    b"not responding",
    b"I/O error",
    b"NIC Link is Down",
    b"Link is Down",
    b"nf_conntrack: table full",
    b"mce:",
]


def read_kernel_log() -> list[str] | None:
    """What of the kernel's log accuses somebody; None where it may not be read."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return select_fault_lines(_read_records(fd), time.monotonic())
    finally:
        os.close(fd)


def read_journal(within: float) -> list[str] | None:
    """The same from the journal: most systems keep the log itself from users, and let some groups read this."""
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
    # Who may read none of it is told nothing, and no error.
    return select_fault_lines(_parse_journal(output), time.monotonic()) if output.strip() else None


def select_fault_lines(records: Iterable[bytes], now: float) -> list[str]:
    """The last lines that accuse somebody, and those of GPUs beside them, each with its age in seconds before it."""
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
    """Each read gives one; there are no more when it would wait."""
    total = 0
    while total < MOST_BYTES:
        try:
            record = os.read(fd, 8192)
        except BrokenPipeError:
            # It was overwritten before we came to it: the next read goes on with the oldest there is.
            continue
        except OSError:
            return
        if record.count(b",", 0, record.find(b";")) < 2:  # noqa: PLR2004 - level, number, time and flags: kmsg's ABI
            return
        total += len(record)
        yield record
