"""Standbys: processes with a rank's imports done, each of which waits for what makes it a rank of the next generation.

The head has a supervisor start them early. They are forgotten when they exit, and no failure of one is reported: a rank
without a standby starts as any other.
"""

from __future__ import annotations

import json
import os
import signal
import socket

from aboard.agent import frames, process_tree
from aboard.agent.event_loop import EventLoop
from aboard.agent.process_spawn import spawn_process

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aboard.agent.beacon.report_receiver import BeaconState
    from aboard.agent.supervisor.rank_output import RankOutput

# Variables with this beginning are read by a rank, not by an import.
OWN = "ABOARD_"
READY = b"ready\n"


class Standby:
    """One process that waits; its standard input is a socket of ours. `env` is what it has beside the beacon's."""

    def __init__(
        self, message: frames.Message, env: Mapping[str, str], outputs: list[RankOutput], beacon: BeaconState | None
    ) -> None:
        self.handed = [str(name) for name in message["handed"]]
        self.env = self._select_fixed(env)
        self.outputs = outputs
        self.beacon = beacon
        self.pid = 0
        self._program = _describe_program(message)
        self._started = 0
        self._ready = False
        self._pipe: socket.socket | None = None

    def spawn(self, argv: list[str], env: dict[str, str], cwd: str | None, in_child: Callable[[], None]) -> None:
        for name in self.handed:
            env.pop(name, None)
        self._pipe, theirs = socket.socketpair()
        self._pipe.setblocking(False)
        try:
            self.pid, error_fd = spawn_process(
                argv,
                env=env,
                cwd=cwd,
                stdin=theirs.fileno(),
                stdout=self.outputs[0].write_end,
                stderr=self.outputs[1].write_end,
                in_child=in_child,
            )
            # One that can't start says nothing, and is never ready.
            os.close(error_fd)
            self._started = process_tree.read_start_time(self.pid)
        finally:
            theirs.close()

    def call_when_ready(self, loop: EventLoop, on_ready: Callable[[], None]) -> None:
        """Calls back once its imports are done."""
        pipe = self._pipe
        if pipe is None:
            return
        fd = pipe.fileno()

        def read() -> None:
            loop.remove_fd(fd)
            self._ready = _receive(pipe) == READY
            if self._ready:
                on_ready()

        loop.on_readable(fd, read)

    def hand_over(self, message: frames.Message, env: Mapping[str, str], child: Mapping[str, str]) -> bool:
        """Makes it this rank; False if it would differ from one that is started, or can't become one now."""
        fixed = self._select_fixed(env)
        handed = {name: value for name, value in env.items() if name not in fixed}
        is_same = fixed == self.env and _describe_program(message) == self._program
        if not (self._ready and is_same and self._is_waiting()) or self._pipe is None:
            return False
        line = json.dumps({"env": handed, **child}).encode("ascii") + b"\n"
        try:
            return self._pipe.send(line, socket.MSG_NOSIGNAL) == len(line)
        except OSError:
            return False

    def close(self, loop: EventLoop, *, kill: bool) -> None:
        """Lets go of it; a rank keeps its outputs."""
        if kill:
            if self.pid and process_tree.read_start_time(self.pid) == self._started:
                process_tree.send_signal([self.pid], signal.SIGKILL)
            for output in self.outputs:
                output.close()
        if self._pipe is not None:
            loop.remove_fd(self._pipe.fileno())
            self._pipe.close()
            self._pipe = None

    def _is_waiting(self) -> bool:
        """Neither stopped by a signal nor gone."""
        return process_tree.read_start_time(self.pid) == self._started and process_tree.read_state(self.pid) in "SRDI"

    def _select_fixed(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables that must not differ: an import may have read them."""
        return {name: value for name, value in env.items() if name not in self.handed and not name.startswith(OWN)}


def _describe_program(message: frames.Message) -> tuple[object, ...]:
    """What a process can't change once it runs."""
    lists = [list(message.get(name) or ()) for name in ("argv", "cores", "secrets")]
    return (*lists, message.get("cwd"), bool(message.get("beacon")), bool(message.get("code")))


def _receive(pipe: socket.socket) -> bytes:
    try:
        return pipe.recv(len(READY))
    except OSError:
        return b""
