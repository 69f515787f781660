"""The roster of the collective test: how its ranks meet before torch is there.

torch's own rendezvous says the same sentence for a firewall, a dead rank and a wrong name (the catalogue's rows 21 to
23). So ranks meet on a plain socket first: rank 0 calls the roster, each says that it is here, imports torch, says that
it is ready, and all go on together. Whoever fails says so, and all others end at once, with what they were waiting for.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import selectors
import socket
import threading
import time

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Any

# Above any line of a rank.
_LONGEST_LINE = 65536


class RosterMember:
    """A connection to the roster; its rank is known from its first line on."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.text = b""
        self.rank: int | None = None


class Roster(threading.Thread):
    """Runs beside rank 0. Whatever goes wrong first is sent to all: the rest are consequences.

    All `world` ranks must be here after `meet` seconds, and have imported torch `load` seconds later.
    """

    def __init__(self, listener: socket.socket, token: str, world: int, meet: float, load: float) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self._token, self._world, self._meet, self._load = token, world, meet, load
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, socket.socket] = {}
        self._here: set[int] = set()
        self._ready: set[int] = set()
        self._done: set[int] = set()
        self._store_port = 0
        self._began = time.monotonic()
        self._called_off = False
        listener.setblocking(False)
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        while not self.over.is_set():
            for key, _ in self._selector.select(0.1):
                if key.data is None:
                    self._accept_peer()
                else:
                    self._read_lines(key.data)
            waited = time.monotonic() - self._began
            everyone = set(range(self._world))
            if waited > self._meet and len(self._here) < self._world:
                self._call_off("meet", everyone - self._here)
            if waited > self._meet + self._load and len(self._ready) < self._world:
                self._call_off("import", everyone - self._ready)

    def _accept_peer(self) -> None:
        try:
            peer = self._listener.accept()[0]
        except OSError:
            return
        peer.settimeout(2.0)
        self._selector.register(peer, selectors.EVENT_READ, RosterMember(peer))

    def _read_lines(self, member: RosterMember) -> None:
        try:
            data = member.peer.recv(65536)
        except OSError:
            data = b""
        member.text += data
        *lines, member.text = member.text.split(b"\n")
        try:
            for line in lines:
                self._take_message(member, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            data = b""
        if not data or len(member.text) > _LONGEST_LINE:
            self._selector.unregister(member.peer)
            member.peer.close()
            if member.rank in self._peers:
                del self._peers[member.rank]
                if member.rank not in self._done:
                    self._call_off("gone", {member.rank})

    def _take_message(self, member: RosterMember, message: dict[str, Any]) -> None:
        # Strangers may come to any port; only who has the token is heard.
        if not hmac.compare_digest(message["token"].encode(), self._token.encode()):
            raise ValueError("a stranger")
        rank = member.rank = int(message["rank"])
        self._peers[rank] = member.peer
        if "here" in message:
            self._here.add(rank)
        if "failed" in message:
            self._call_off(message["failed"], {rank})
        if "ready" in message:
            self._ready.add(rank)
            self._store_port = message["ready"] or self._store_port
            if len(self._ready) == self._world:
                self._tell_all({"go": self._store_port})
        if "done" in message:
            self._done.add(rank)
            if len(self._done) == self._world:
                self._tell_all({"end": True})
                self.over.set()

    def _call_off(self, phase: str, absent: set[int]) -> None:
        if not self._called_off:
            self._called_off = True
            self._tell_all({"off": {"phase": phase, "absent": sorted(absent)}})
            self.over.set()

    def _tell_all(self, message: dict[str, Any]) -> None:
        for peer in list(self._peers.values()):
            with contextlib.suppress(OSError):
                peer.sendall(json.dumps(message).encode() + b"\n")


def open_listener(port: int) -> socket.socket:
    """Both families where there are both: the address that peers have may be of either."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both)
