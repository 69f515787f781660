"""Requests that the bridge handles itself: run a command, read files. Each runs in a child with a timeout."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import signal
import stat
import sys

from aboard.agent import forked_work, frames
from aboard.agent.event_loop import EventLoop
from aboard.agent.process_spawn import drop_relative_folders, read_start_failure, spawn_process

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

    from aboard.agent.container.container_requests import ContainerRequests

    Reply = Callable[[frames.Message], None]

# Both fit into one frame, even if JSON escapes every byte with six characters.
OUTPUT_LIMIT = 512 * 1024
# Limits the reply as JSON.
FILES_LIMIT = 4 * 1024 * 1024


class RequestRunner:
    """The requests in progress; `end` leaves none of their processes behind."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._pending: dict[int, _PendingRequest] = {}
        self._count = 0
        self._containers: ContainerRequests | None = None
        self._clean = True
        loop.on_signal(signal.SIGCHLD, self._reap)

    def run(self, message: frames.Message, reply: Reply) -> None:
        """Runs argv in its own session; the reply has its exit code and output.

        `source` is Python code that the forked child runs with argv as sys.argv, which saves an interpreter's start.
        With a `container`, argv runs in it, as for a rank, once its image is unpacked.
        """
        if message.get("container"):
            self._run_in_container(message, reply)
        else:
            self._start(message, reply)

    def _start(self, message: frames.Message, reply: Reply) -> None:
        # Late, here and below, since a check that only reads files never needs it.
        from aboard.agent import process_tree  # noqa: PLC0415 - the reason is above

        env = dict(os.environ)
        env.update(message.get("env") or {})
        drop_relative_folders(env)
        self._count += 1
        env[process_tree.RUN_ID] = mark = "ask-%d-%d" % (os.getpid(), self._count)
        argv = [str(argument) for argument in message["argv"]]
        source = message.get("source")
        containers = self._containers if message.get("container") else None
        if containers is not None:
            containers.record(message, mark)

        def prepare() -> None:
            if source is not None:
                os.environ.update(env)
                _run_script_and_exit(str(source), argv)
            if containers is not None:
                containers.wrap(message, argv, env)

        request = _PendingRequest(self._loop, reply, min(OUTPUT_LIMIT, int(message.get("limit", OUTPUT_LIMIT))), mark)
        try:
            pid, request.start_fd = spawn_process(
                argv,
                env=env,
                cwd=message.get("cwd") if containers is None else None,
                stdin=request.null,
                stdout=request.write_ends[0],
                stderr=request.write_ends[1],
                in_child=prepare,
            )
        except OSError as error:
            request.close()
            reply({"code": 127, "stdout": "", "stderr": str(error.strerror)})
            return
        self._track_request(pid, request, message)

    def read(self, message: frames.Message, reply: Reply) -> None:
        """Reads files in a child of our own, since a dead mount would block us for ever."""

        def complete(outcome: frames.Message) -> None:
            files = json.loads(outcome["stdout"]) if outcome["code"] == 0 else None
            reply({"files": files, "timed_out": outcome.get("timed_out", False)})

        self.fork(
            message, lambda: _read_files(list(map(str, message["globs"])), int(message.get("limit", 65536))), complete
        )

    def fork(self, message: frames.Message, work: Callable[[], bytes], reply: Reply) -> None:
        """Runs work that may block in a forked child; its stdout is what `work` returned."""
        self.fork_streaming(message, lambda report: report(work()), reply)

    def fork_streaming(self, message: frames.Message, work: Callable[[forked_work.Report], None], reply: Reply) -> None:
        """As `fork`, for work that reports step by step: its stdout has everything reported before the timeout."""
        request = _PendingRequest(self._loop, reply, FILES_LIMIT * 2, "no mark: it starts nothing")
        try:
            pid = forked_work.fork_worker(work, request.write_ends[0])
        except OSError:
            request.close()
            raise
        self._track_request(pid, request, message)

    def end(self) -> None:
        for pid, request in self._pending.items():
            _kill_process_tree(pid, request.mark)
        if self._containers is not None:
            self._containers.end(clean=self._clean and not self._pending)

    @property
    def pids(self) -> list[int]:
        """The processes of requests in progress."""
        return list(self._pending)

    def release_images(self) -> dict[str, str]:
        """The images that requests unpacked, for a supervisor to move into its run's directory."""
        return {} if self._containers is None else self._containers.unpacks.release()

    def _run_in_container(self, message: frames.Message, reply: Reply) -> None:
        from aboard.agent.container.container_requests import ContainerRequests  # noqa: PLC0415 - most checks need none

        def start(why: str) -> None:
            if why:
                reply({"code": 1, "stdout": "", "stderr": why})
            else:
                self._start(message, reply)

        if self._containers is None:
            self._containers = ContainerRequests()
        if not self._containers.hold(message, start):
            start(self._containers.unpacks.find_failure(message))

    def _track_request(self, pid: int, request: _PendingRequest, message: frames.Message) -> None:
        self._pending[pid] = request
        request.start_reading()
        self._loop.later(float(message.get("timeout", 10.0)), lambda: self._late(pid, request))
        self._reap()

    def _late(self, pid: int, request: _PendingRequest) -> None:
        if self._pending.get(pid) is request:
            request.timed_out = True
            self._clean = False
            _kill_process_tree(pid, request.mark)
            # A process in uninterruptible sleep (a dead mount) can't be killed: reply without it.
            self._loop.later(0.5, lambda: self._abandon(pid, request))

    def _abandon(self, pid: int, request: _PendingRequest) -> None:
        if self._pending.get(pid) is request:
            del self._pending[pid]
            request.finish(-signal.SIGKILL)

    def _reap(self) -> None:
        if self._containers is not None:
            self._containers.reap()
        for pid, request in list(self._pending.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                del self._pending[pid]
                # Also kills what the command left behind in its group. The pid can't be reused before it is reaped,
                # so the group is still the command's.
                _kill_group(pid)
                request.finish(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


class _PendingRequest:
    """One running process and its output so far."""

    def __init__(self, loop: EventLoop, reply: Reply, limit: int, mark: str) -> None:
        self.mark = mark
        self._loop = loop
        self._reply = reply
        self._limit = limit
        self.timed_out = False
        self.start_fd = -1
        self._printed = (bytearray(), bytearray())
        pipes = (os.pipe(), os.pipe())
        self._read_ends = [pipe[0] for pipe in pipes]
        self.write_ends = [pipe[1] for pipe in pipes]
        self.null = os.open(os.devnull, os.O_RDONLY)

    def start_reading(self) -> None:
        self._close_ours()
        for fd, printed in zip(self._read_ends, self._printed):
            os.set_blocking(fd, False)
            self._loop.on_readable(fd, lambda fd=fd, printed=printed: self._drain(fd, printed, 1))  # type: ignore[misc]

    def finish(self, code: int) -> None:
        for fd, printed in zip(self._read_ends, self._printed):
            self._drain(fd, printed, 64)
        why = read_start_failure(self.start_fd) if self.start_fd >= 0 else None
        if why:
            self._printed[1][:] = why.encode("utf-8", "replace")
        self.close()
        out, err = (frames.bytes_to_text(bytes(printed)) for printed in self._printed)
        outcome: frames.Message = {"code": code, "stdout": out, "stderr": err}
        if self.timed_out:
            outcome["timed_out"] = True
        self._reply(outcome)

    def close(self) -> None:
        self._close_ours()
        for fd in self._read_ends:
            self._loop.remove_fd(fd)
            os.close(fd)
        self._read_ends = []
        if self.start_fd >= 0:
            os.close(self.start_fd)
            self.start_fd = -1

    def _close_ours(self) -> None:
        for fd in self.write_ends:
            os.close(fd)
        self.write_ends = []
        if self.null >= 0:
            os.close(self.null)
            self.null = -1

    def _drain(self, fd: int, printed: bytearray, rounds: int) -> None:
        for _ in range(rounds):
            try:
                part = os.read(fd, 65536)
            except OSError:
                return
            if not part:
                self._loop.remove_fd(fd)
                return
            printed += part[: max(0, self._limit - len(printed))]


def _run_script_and_exit(source: str, argv: list[str]) -> NoReturn:
    """Runs the script in a child whose descriptors are already in place."""
    sys.argv = argv
    code = 0
    try:
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        exec(compile(source, argv[0], "exec"), {"__name__": "__main__"})  # noqa: S102 - from our own head, like all of the agent
    except BaseException as error:  # noqa: BLE001 - nothing may unwind into a second copy of the agent
        sys.stderr.write("%s: %s\n" % (type(error).__name__, error))
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _kill_process_tree(pid: int, mark: str) -> None:
    """Kills a command, all below it and all that has its mark; a child that was just forked has no group yet."""
    from aboard.agent import process_tree  # noqa: PLC0415 - the reason is above

    process_tree.send_signal(
        [pid, *process_tree.list_descendants(pid), *process_tree.find_run_processes(mark)], signal.SIGKILL
    )
    _kill_group(pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _read_files(patterns: list[str], limit: int) -> bytes:
    """The files as JSON; those that exceed the limit are left out."""
    files: dict[str, str] = {}
    room = FILES_LIMIT
    for pattern in patterns:
        for path in _expand_pattern(pattern):
            content = _read_file(path, min(room, limit))
            # Counted as it is sent: JSON escapes some bytes with six characters.
            size = 0 if content is None else len(json.dumps({path: frames.bytes_to_text(content)}))
            if content is not None and size <= room:
                files[path] = frames.bytes_to_text(content)
                room -= size
    return json.dumps(files).encode()


def _read_file(path: str, limit: int) -> bytes | None:
    """Reads a regular file; anything else (a pipe, a socket) could block or never end."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        content = b""
        while len(content) < limit:
            part = os.read(fd, limit - len(content))
            if not part:
                break
            content += part
    except OSError:
        return None
    else:
        return content
    finally:
        os.close(fd)


def _expand_pattern(pattern: str) -> Iterator[str]:
    """Yields the paths that match; importing glob would cost as much as the whole request."""
    paths = ["/" if pattern.startswith("/") else "."]
    for part in pattern.strip("/").split("/"):
        if "*" in part:
            paths = [
                os.path.join(base, name)
                for base in paths
                for name in _list_names(base)
                if fnmatch.fnmatchcase(name, part)
            ]
        else:
            paths = [os.path.join(base, part) for base in paths]
    yield from sorted(paths)


def _list_names(base: str) -> list[str]:
    try:
        return os.listdir(base)
    except OSError:
        return []
