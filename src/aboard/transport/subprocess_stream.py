"""A stream over a program's stdin and stdout; its stderr is read continuously and bounded."""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from aboard.transport.transport import StreamEnding

MAX_LINES = 200
LINE_LIMIT = 2000
# ssh needs a moment to close its session; after that it is terminated.
LAST_CALL = 2.0
# A start takes a few turns of the loop.
START_GRACE = 0.2
DRAIN_LIMIT = 16 * 1024 * 1024
WIDE_PIPE = 1024 * 1024


class ProcessStream:
    """One program as a stream; `classify_line` gets each line of its stderr and names the phase that it completes.

    It returns "" for a line to ignore and None for one to keep as a message.
    """

    bootstrap = None

    def __init__(self, process: asyncio.subprocess.Process, classify_line: Callable[[str], str | None]) -> None:
        self._process = process
        self._classify_line = classify_line
        self._began = monotonic()
        self._messages: list[str] = []
        self._phases: dict[str, float] = {}
        self._is_wide = False
        self._stderr_task = asyncio.create_task(self._read_stderr())

    async def read(self, size: int) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - always a pipe, see `start`
        return await self._process.stdout.read(size)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert self._process.stdin is not None  # noqa: S101 - always a pipe, see `start`
        # Reading shows that the program has exited; asyncio would log each write to it on the terminal.
        if not self._process.stdin.is_closing():
            if len(data) > WIDE_PIPE // 4 and not self._is_wide:
                self._is_wide = True
                self._widen_pipe()
            self._process.stdin.write(data)

    def _widen_pipe(self) -> None:
        """A larger pipe takes a file's chunk in one write; only for streams with files, since a user has a quota."""
        assert self._process.stdin is not None  # noqa: S101 - always a pipe, see `start`
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self._process.stdin.transport.get_extra_info("pipe").fileno(), fcntl.F_SETPIPE_SZ, WIDE_PIPE)

    async def drain(self) -> None:
        assert self._process.stdin is not None  # noqa: S101 - always a pipe, see `start`
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.drain()

    def close_input(self) -> None:
        """Lets the program see the end of its stdin."""
        assert self._process.stdin is not None  # noqa: S101 - always a pipe, see `start`
        self._process.stdin.close()

    async def close(self, *, hurry: bool = False) -> StreamEnding:
        """Closes stdin and lets the program exit by itself, then terminates it, and only it."""
        self.close_input()
        try:
            for number in (signal.SIGTERM, signal.SIGKILL) if hurry else (None, signal.SIGTERM, signal.SIGKILL):
                if number is not None:
                    with contextlib.suppress(ProcessLookupError):
                        self._process.send_signal(number)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._drain_output(), LAST_CALL)
                    break
        finally:
            # Also when cancelled while waiting: kills what still runs, and closes pipes that a grandchild may keep open
            # for ever.
            self._stderr_task.cancel()
            self._process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no public way to close a child's pipes
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), LAST_CALL)
        return self.ending

    @property
    def ending(self) -> StreamEnding:
        return StreamEnding(
            exit_code=self._process.returncode, stderr="\n".join(self._messages), phases=dict(self._phases)
        )

    async def _drain_output(self) -> None:
        """Reads the rest of its output: a program that is blocked in a write would never exit."""
        assert self._process.stdout is not None  # noqa: S101 - always a pipe, see `start`
        left = DRAIN_LIMIT
        while part := await self._process.stdout.read(65536):
            left -= len(part)
            if left < 0:
                raise TimeoutError("the program never stops writing")
        await self._process.wait()
        # A grandchild (ssh's master, a proxy) may keep stderr open for ever: do not wait long for its last lines.
        await asyncio.wait([self._stderr_task], timeout=0.2)

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - always a pipe, see `start`
        rest = b""
        while part := await self._process.stderr.read(16384):
            *lines, rest = (rest + part).split(b"\n")
            rest = rest[:LINE_LIMIT]
            for line in lines:
                self._take_line(line)
        self._take_line(rest)

    def _take_line(self, raw: bytes) -> None:
        line = raw[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r")
        phase = self._classify_line(line)
        if phase:
            self._phases.setdefault(phase, monotonic() - self._began)
        elif phase is None and line:
            self._messages.append(line)
            del self._messages[:-MAX_LINES]


async def start_program(
    argv: Sequence[str],
    classify_line: Callable[[str], str | None],
    in_child: Callable[[], None] | None = None,
    *,
    keep_terminal: bool = False,
    env: Mapping[str, str] | None = None,
) -> ProcessStream:
    """Starts argv in a session of its own, so that the terminal's Ctrl-C reaches us and not it.

    With `keep_terminal` it can ask for a password there.
    """
    use_pidfds()
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=not keep_terminal,
            preexec_fn=in_child,
            env=env,
        )
    )
    try:
        return ProcessStream(await asyncio.shield(starting), classify_line)
    except asyncio.CancelledError:
        await _end_unwanted_start(starting)
        raise


async def _end_unwanted_start(starting: "asyncio.Task[asyncio.subprocess.Process]") -> None:
    """Ends a process whose start nobody waits for any more.

    A loop that ends cancels asyncio's own task that connects the pipes, too. asyncio kills the process then, but waits
    for these pipes for ever: only a second cancellation gets it out of there. We are cancelled again, too, and go on.
    """
    while not starting.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([starting], timeout=START_GRACE)
            starting.cancel()
    if not starting.cancelled() and starting.exception() is None:
        await ProcessStream(starting.result(), lambda _: "").close(hurry=True)


def use_pidfds() -> None:
    """Python 3.11 would start a thread for each child; from 3.12 on it uses pidfds by itself."""
    if sys.version_info < (3, 12) and hasattr(os, "pidfd_open"):
        watcher = asyncio.get_child_watcher()
        if not (isinstance(watcher, asyncio.PidfdChildWatcher) and watcher.is_active()):
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(asyncio.get_running_loop())
            asyncio.set_child_watcher(watcher)
