"""A stream over a program's stdin and stdout; its stderr is read as it comes, and bounded."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from time import monotonic

from aboard.transport.transport import StreamEnding

KEPT_LINES = 200
LINE_LIMIT = 2000
# ssh needs a moment to close its session; past it, it is ended.
LAST_CALL = 2.0
LAST_WORDS = 16 * 1024 * 1024


class ProcessStream:
    """One program as a wire; `heed` sees each line of its stderr and names the phase that it ends.

    For a line that ends no phase and says nothing either, it returns ""; for one that says something, None.
    """

    def __init__(self, process: asyncio.subprocess.Process, classify_line: Callable[[str], str | None]) -> None:
        self._process = process
        self._classify_line = classify_line
        self._began = monotonic()
        self._said: list[str] = []
        self._phases: dict[str, float] = {}
        self._listening = asyncio.create_task(self._listen())

    async def read(self, size: int) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - always a pipe, see `start`
        return await self._process.stdout.read(size)

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101 - always a pipe, see `start`
        # A far end that is gone is known by what is read; asyncio would say so on the terminal, once for each write.
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    async def drain(self) -> None:
        assert self._process.stdin is not None  # noqa: S101 - always a pipe, see `start`
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.drain()

    async def close(self, *, hurry: bool = False) -> StreamEnding:
        """Lets the far end leave by itself (its stdin ends), then ends our own program, and only that."""
        assert self._process.stdin is not None  # noqa: S101 - always a pipe, see `start`
        self._process.stdin.close()
        try:
            for number in (signal.SIGTERM, signal.SIGKILL) if hurry else (None, signal.SIGTERM, signal.SIGKILL):
                if number is not None:
                    with contextlib.suppress(ProcessLookupError):
                        self._process.send_signal(number)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._drained(), LAST_CALL)
                    break
        finally:
            # Also when we are cancelled while we wait: kills what still runs, and closes pipes that a grandchild
            # may hold open for ever. The process has no public way to do so.
            self._listening.cancel()
            self._process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no public way to close a child's pipes
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), LAST_CALL)
        return self.ending

    @property
    def ending(self) -> StreamEnding:
        return StreamEnding(exit_code=self._process.returncode, stderr="\n".join(self._said), phases=dict(self._phases))

    async def _drained(self) -> None:
        """Reads what is left unread: a program that can't write its last words would never leave."""
        assert self._process.stdout is not None  # noqa: S101 - always a pipe, see `start`
        left = LAST_WORDS
        while part := await self._process.stdout.read(65536):
            left -= len(part)
            if left < 0:
                raise TimeoutError("it floods us, and would for ever")
        await self._process.wait()
        # A grandchild (ssh's master, a proxy) may hold stderr open for ever: its last words are not awaited long.
        await asyncio.wait([self._listening], timeout=0.2)

    async def _listen(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - always a pipe, see `start`
        rest = b""
        while part := await self._process.stderr.read(16384):
            *lines, rest = (rest + part).split(b"\n")
            rest = rest[:LINE_LIMIT]
            for line in lines:
                self._hear(line)
        self._hear(rest)

    def _hear(self, raw: bytes) -> None:
        line = raw[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r")
        phase = self._classify_line(line)
        if phase:
            self._phases.setdefault(phase, monotonic() - self._began)
        elif phase is None and line:
            self._said.append(line)
            del self._said[:-KEPT_LINES]


async def start_program(
    argv: Sequence[str], classify_line: Callable[[str], str | None], in_child: Callable[[], None] | None = None
) -> ProcessStream:
    """Starts argv in a session of its own, so that the terminal's Ctrl-C reaches us and not it."""
    use_pidfds()
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=in_child,
    )
    return ProcessStream(process, classify_line)


def use_pidfds() -> None:
    """Python 3.11 would start a thread for each child; from 3.12 on it uses pidfds by itself."""
    if sys.version_info < (3, 12) and hasattr(os, "pidfd_open"):
        watcher = asyncio.get_child_watcher()
        if not (isinstance(watcher, asyncio.PidfdChildWatcher) and watcher.is_active()):
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(asyncio.get_running_loop())
            asyncio.set_child_watcher(watcher)
