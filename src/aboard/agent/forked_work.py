"""Runs work that may hang in a forked child, which reports each result at once, so that earlier ones are not lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

    Report = Callable[[bytes], None]
    ReportResult = Callable[[dict[str, Any]], None]


def fork_worker(work: Callable[[Report], None], out: int, kept: Collection[int] = ()) -> int:
    """Returns the pid of a child that writes to `out` what `work` reports, and exits after it.

    A child that hangs on a dead mount can't be killed: it must not keep the transport, a port or our group open. It has
    `out` and the `kept` descriptors only.
    """
    pid = os.fork()
    if pid == 0:
        _run_and_exit(work, out, kept)
    return pid


def wrap_json_lines(work: Callable[[ReportResult], None]) -> Callable[[Report], None]:
    """Writes results as lines of JSON; an exception in `work` becomes the last one."""

    def write_lines(report: Report) -> None:
        def report_result(result: dict[str, Any]) -> None:
            report(json.dumps(result).encode() + b"\n")

        try:
            work(report_result)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            report_result({"broke": "%s: %s" % (type(error).__name__, error)})

    return write_lines


def parse_json_lines(output: bytes) -> Iterator[dict[str, Any]]:
    """Parses these lines; the last one may be cut."""
    for line in output.split(b"\n"):
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _run_and_exit(work: Callable[[Report], None], out: int, kept: Collection[int]) -> None:
    def report(data: bytes) -> None:
        while data:
            data = data[os.write(out, data) :]

    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.dup2(0, 2)
        for fd in os.listdir("/proc/self/fd"):
            if int(fd) > 2 and int(fd) != out and int(fd) not in kept:  # noqa: PLR2004 - stdin, stdout and stderr
                with contextlib.suppress(OSError):
                    os.close(int(fd))
        work(report)
        code = 0
    finally:
        os._exit(code)
