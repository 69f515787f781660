"""The supervisor's copier: a niced child that copies parts of checkpoints, started again if something kills it."""

from __future__ import annotations

import os
import socket

from aboard.agent import frames
from aboard.agent.channel import Channel
from aboard.agent.event_loop import EventLoop
from aboard.agent.forked_work import fork_worker

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Reply = Callable[[frames.Message], None]
    from aboard.agent.supervisor_events import CopiedFiles, CopyFailure, Emit

RESTART_SECONDS = 0.5


class Copier:
    """Relays the head's requests, and what was copied; the listener is ours, so that a new child has the same port."""

    def __init__(self, loop: EventLoop, emit: Emit) -> None:
        self._loop = loop
        self._emit = emit
        self._listener: socket.socket | None = None
        self._channel: Channel | None = None
        # For a child that takes over.
        self._settings: list[frames.Message] = []
        self._replies: dict[Any, Reply] = {}
        # The child on whose behalf copies are reported: any rank of this node.
        self._child = ""

    def handle(self, message: frames.Message, reply: Reply) -> None:
        """Answers a request of the head, by way of the child."""
        from aboard.agent.copies.copier_process import open_listener  # noqa: PLC0415 - only `aboard train` needs it

        if message["do"] == "open" and self._listener is None:
            self._child = str(message["child"])
            self._listener = open_listener(str(message["address"]))
            self._start()
        if self._channel is None:
            raise ValueError("no copier is open")
        if message["do"] in ("open", "peers"):
            self._settings.append({name: value for name, value in message.items() if name != "id"})
        self._replies[message.get("id")] = reply
        self._channel.send(message)

    def note_saved(self) -> None:
        """A rank has published a checkpoint."""
        if self._channel is not None:
            self._channel.send({"op": "copies", "do": "saved"})

    def close(self) -> None:
        """Lets the child exit; what is half copied stays for the next generation."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _start(self) -> None:
        if self._listener is None:
            return
        listener = self._listener
        ours, theirs = socket.socketpair()
        with theirs:
            fork_worker(lambda _report: _serve(theirs.fileno(), listener), theirs.fileno(), (listener.fileno(),))
        fd = ours.detach()
        self._channel = Channel(self._loop, (fd, fd), self._take, self._restart)
        for message in self._settings:
            self._channel.send(message)

    def _restart(self) -> None:
        self._channel = None
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            reply({"error": "the copier was killed"})
        self._loop.later(RESTART_SECONDS, self._start)

    def _take(self, body: bytes) -> None:
        message = frames.unpack(body)
        if "saved" in message:
            saved: CopiedFiles = message["saved"]
            self._emit(
                {
                    "kind": "saved",
                    "child": self._child,
                    "copied": True,
                    "checkpoint": saved["checkpoint"],
                    "serial": saved["serial"],
                    "files": saved["files"],
                }
            )
        elif "uncopied" in message:
            missing: CopyFailure = message["uncopied"]
            self._emit({"kind": "uncopied", **missing})
        elif message.get("re") in self._replies:
            self._replies.pop(message["re"])(message)


def _serve(fd: int, listener: socket.socket) -> None:
    from aboard.agent.copies.copier_process import NICENESS, serve_copies  # noqa: PLC0415 - as above

    os.nice(NICENESS)
    serve_copies(fd, listener)
