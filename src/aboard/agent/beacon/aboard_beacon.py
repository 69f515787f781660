"""The beacon: reports a rank's progress to the supervisor from inside the rank, without affecting the script.

It never raises into the rank, prints or imports torch, and blocks only a connection to a master that does not listen
yet: a missing report is harmless, a disturbed rank is not.
Its only thread starts when torch is about to create a process group, and sleeps until the supervisor sends a request.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself would cost each rank an enum or two
import _socket  # socket itself would cost each rank 4 ms to import
import atexit
import errno
import faulthandler
import fcntl
import os
import sys
import time
from _json import encode_basestring_ascii as quoted  # json would cost 3 ms
from contextlib import suppress

TYPE_CHECKING = False  # typing itself costs each rank 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

PHASES = ("started", "torch", "store", "group", "collective")
# How long an exiting rank may wait, in total, for a supervisor that reads slowly.
LAST_WORDS_SECONDS = 0.2
TYPE_CHARS, MESSAGE_CHARS, TRACE_CHARS = 200, 2000, 8000
WAITING = 16
# The supervisor is gone for good: it never returns under the same name.
GONE = (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR, errno.EACCES, errno.EPERM)
# Below the usual limit of 1024 open files, and far above what a rank has open.
HIGH_DESCRIPTOR = 700
# Set in a process that is no rank yet: it reports nothing until it becomes one.
STANDBY = "ABOARD_STANDBY"
# Lets another process trace this one: prctl(2), Yama.
PR_SET_PTRACER = 0x59616D61

armed: Beacon | None = None


def arm(folder: str) -> None:
    """Removes the supervisor's variables from the environment, so that no child inherits them, and starts."""
    names = ("ABOARD_BEACON", "ABOARD_CHILD", "ABOARD_STACKS", "ABOARD_AWAIT")
    path, child, stacks, awaited = (os.environ.pop(name, "") for name in names)
    # Imported by name from the same directory: on a node it is not part of a package.
    torch = __import__("aboard_beacon_torch")
    _remove_from_path(folder)
    if not path or not (child or STANDBY in os.environ):
        return
    beacon = Beacon(path, child)
    # For Aboard's trainer, which finds this module by its name.
    global armed  # noqa: PLW0603 - one process has one beacon
    armed = beacon
    beacon.reach("started")
    _call_safely(lambda: _report_exceptions(beacon))
    # Next to the rank's stacks file, whose name contains its number.
    request_path = "%s.ask" % stacks.rpartition(".")[0].split(":", 2)[-1]
    _call_safely(lambda: torch.watch(beacon, os.path.dirname(path), request_path, awaited))
    _call_safely(lambda: _show_stacks(*stacks.split(":", 2)))


class Beacon:
    """Sends reports to the supervisor's socket; what cannot be sent now waits or is superseded."""

    def __init__(self, path: str, child: str) -> None:
        self._path = path
        self._child = quoted(child)
        self._pid = os.getpid()
        self._waiting: list[bytes] = []
        self._phase = -1
        # The step that Aboard's trainer resumed from: reported steps count from there.
        self.first_step = 0
        self.gone = False
        self.silent = not child
        # Called with the value of ABOARD_AWAIT when a standby becomes a rank.
        self.on_rank: Callable[[str], None] = lambda _awaited: None

    def reach(self, phase: str) -> None:
        """Reports a phase once; a later one implies it."""
        if not self.reached(phase):
            self._phase = PHASES.index(phase)
            self.tell('"phase":"%s"' % phase)

    def become_rank(self, child: str, awaited: str) -> None:
        """Reports as this rank from here on, first the phases that the standby has reached."""
        self._child, self.silent, last = quoted(child), False, self._phase
        self._waiting.clear()
        self._phase = -1
        for phase in PHASES[: last + 1]:
            self.reach(phase)
        self.on_rank(awaited)

    def reached(self, phase: str) -> bool:
        return self._phase >= PHASES.index(phase)

    def doing(self, what: str) -> None:
        """Reports what the rank does instead of steps (evaluation, checkpoint, data …); "" when it is over."""
        self.tell('"doing":%s' % quoted(what))

    def tell(self, fields: str) -> None:
        """Sends what must not be lost: retried with the next report and at exit."""
        self._waiting.append(self._line(fields))
        del self._waiting[:-WAITING]
        self.flush()

    def mention(self, fields: str) -> bool:
        """Sends what the next report supersedes; returns whether it was sent."""
        return self.flush() and self._send(self._line(fields))

    def answer(self, fields: str) -> None:
        """Sends a report from the listener's thread, so it does not touch the queue of pending reports."""
        self._send(self._line(fields))

    def flush(self) -> bool:
        while self._waiting:
            if not self._send(self._waiting[0]):
                return False
            del self._waiting[0]
        return True

    def _line(self, fields: str) -> bytes:
        return ('{"child":%s,"pid":%d,"wall":%.6f,%s}' % (self._child, self._pid, time.time(), fields)).encode("ascii")

    def _send(self, line: bytes) -> bool:
        """Whether the report is done with: sent, or impossible to send."""
        if self.silent or self.gone or os.getpid() != self._pid:
            return True
        try:
            # Opened for each report: a script may close unknown descriptors and reuse their numbers, and we must not
            # write into its files.
            connection = _socket.socket(
                _socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
            )
            try:
                connection.sendto(line, self._path)
            finally:
                connection.close()
        except OSError as error:
            self.gone = error.errno in GONE
            return self.gone or error.errno == errno.EMSGSIZE
        return True


# -- the end ---------------------------------------------------------------------------------------------------------


def _report_exceptions(beacon: Beacon) -> None:
    """Reports an exception that ends the rank, before it is printed as usual."""
    previous = sys.excepthook
    reported: list[int] = []

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        _call_safely(lambda: report(value))
        previous(kind, value, trace)

    def report(value: BaseException) -> None:
        reported.append(id(value))
        beacon.tell('"raised":%s' % _encode_exception(value))

    def report_at_exit() -> None:
        # Python stores the exception here too, in case another hook has replaced ours.
        value = getattr(sys, "last_value", None)
        if isinstance(value, BaseException) and id(value) not in reported:
            report(value)
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while not beacon.flush() and time.monotonic() < deadline:
            time.sleep(0.005)

    sys.excepthook = excepthook
    atexit.register(_call_safely, report_at_exit)

    def in_child() -> None:
        beacon.gone = True
        if sys.excepthook is excepthook:
            sys.excepthook = previous

    os.register_at_fork(after_in_child=in_child)


def _encode_exception(value: BaseException) -> str:
    import traceback  # noqa: PLC0415 - only a rank that ends badly pays for it

    kind = type(value)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = "%s.%s" % (kind.__module__, name)
    try:
        message = str(value)
    except Exception:  # noqa: BLE001 - as Python itself prints such a one
        message = "<exception str() failed>"
    trace = "".join(traceback.format_exception(kind, value, value.__traceback__))
    # An error of Aboard's trainer carries its code and values.
    packed = getattr(value, "packed", None)
    error = ',"error":%s' % quoted(packed) if isinstance(packed, str) and len(packed) <= TRACE_CHARS else ""
    return '{"type":%s,"message":%s,"trace":%s%s}' % (
        quoted(name[:TYPE_CHARS]),
        quoted(message[:MESSAGE_CHARS]),
        quoted(trace[-TRACE_CHARS:]),
        error,
    )


# -- stacks ----------------------------------------------------------------------------------------------------------


def _show_stacks(number: str, supervisor: str, path: str) -> None:
    """Makes the supervisor's signal write all threads' stacks there, even when none of them runs Python code.

    So does a signal that native code dies of: no Python handler runs then, and the exit code alone tells nothing.
    """
    low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    # A number that no file gets after a script has closed unknown descriptors: stacks must not go into its own files.
    file = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    os.close(low)
    # At exit Python restores the previous handler: a signal that arrives then must not kill the rank.
    _signal.signal(int(number), _signal.SIG_IGN)
    faulthandler.register(int(number), file=file, all_threads=True, chain=False)
    os.register_at_fork(after_in_child=lambda: _call_safely(lambda: faulthandler.unregister(int(number))))
    if not faulthandler.is_enabled():
        # The user's own, by -X faulthandler or in the script, stays in charge.
        faulthandler.enable(file=file, all_threads=True)
    with open("/proc/sys/kernel/yama/ptrace_scope", "rb") as scope:
        if scope.read(1) == b"1":
            import ctypes  # noqa: PLC0415 - 8 ms, and only Ubuntu and its kind need it

            ctypes.CDLL(None).prctl(PR_SET_PTRACER, int(supervisor), 0, 0, 0)


# -- isolation from the rank ----------------------------------------------------------------------------------------


def _call_safely(act: Callable[[], Any]) -> None:
    """Suppresses every failure of the beacon: it must never affect the rank."""
    with suppress(Exception):
        act()


def _remove_from_path(folder: str) -> None:
    """Removes our folder from the path, here and for all children."""
    parts = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part != folder]
    if any(parts):
        os.environ["PYTHONPATH"] = os.pathsep.join(parts)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [part for part in sys.path if part != folder]
    sys.path_importer_cache.pop(folder, None)
