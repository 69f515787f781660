"""The copier of a node: sends parts of checkpoints to peers, and fetches those that this disk is to have.

While a run trains, it is a niced child of the supervisor: it fetches what `copies.json` of each new checkpoint lists,
from the node that wrote it. Before a run resumes, it is a child of the bridge, and fetches what the head lists.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections import deque
from queue import SimpleQueue

from aboard.agent import frames
from aboard.agent.channel import Channel
from aboard.agent.copies.copy_record import COPIED, COPYING, FULL, CopiedFile, CopyRecord, list_records
from aboard.agent.copies.peer_files import (
    FIRST_NODE,
    SILENT_SECONDS,
    Pace,
    PeerError,
    PeerFiles,
    PeerRefused,
    WrongContent,
    serve_peer,
)
from aboard.agent.event_loop import EventLoop
from aboard.agent.network.peer_listener import bind_listener
from aboard.agent.transfer.file_names import describe_failure
from aboard.agent.transfer.peer_acceptor import PeerAcceptor, resolve_address
from aboard.agent.transfer.peer_handshake import DialerHandshake
from aboard.agent.transfer.receive_folders import validate_folder
from aboard.agent.transfer.root_folder import open_folder

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Union

    from aboard.agent.supervisor_events import CopiedFiles, CopyFailure, CopyObstacle
    from aboard.agent.transfer.peer_handshake import PeerKeys

    Dialed = Union[tuple[socket.socket, PeerKeys], str]

CONNECT_SECONDS = 5.0
# Between attempts, doubled up to the second.
RETRY_SECONDS, MOST_RETRY_SECONDS = 0.5, 15.0
NICENESS = 10


def serve_copies(fd: int, listener: socket.socket | None = None) -> None:
    """Answers its parent on `fd`, and peers, until the parent leaves."""
    loop = EventLoop()
    CopierProcess(loop, fd, listener)
    loop.run()


def open_listener(address: str) -> socket.socket:
    """A free port on the address that peers use for this node."""
    family, found = resolve_address(address)
    return bind_listener(family, (found, 0))


class CopierProcess:
    """The parent's requests: open, peers, saved, fetch, status. A thread fetches; each peer is served by another."""

    def __init__(self, loop: EventLoop, fd: int, listener: socket.socket | None) -> None:
        self._loop = loop
        self._channel = Channel(loop, (fd, fd), self._take, loop.stop)
        self._acceptor = PeerAcceptor(loop, self._serve, lambda: len(self._served))
        self._listener = listener
        self._served: set[socket.socket] = set()
        self._pace = Pace(0)
        self._key, self._me = b"", -1
        self._root = ""
        # By number: where a peer listens; and which peer has a rank.
        self._addresses: dict[int, tuple[str, int]] = {}
        self._node_by_rank: dict[int, int] = {}
        self._peers: dict[int, PeerFiles] = {}
        # Checkpoints that their source no longer has.
        self._skipped: set[str] = set()
        self._orders: deque[tuple[str, CopiedFile, list[int]]] = deque()
        self._lacking: list[list[str]] = []
        # Counts up while bytes are hashed or received, so that whoever waits can see that nothing moves.
        self._moved = 0
        # The peer with a copy of what rank 0's node has beside the checkpoints, if the head wants it here.
        self._beside: int | None = None
        self._why, self._retry = "", RETRY_SECONDS
        self._waiting: frames.Message | None = None
        self._wake = threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    # -- requests of the parent ----------------------------------------------------------------------------

    def _take(self, body: bytes) -> None:
        message = frames.unpack(body)
        try:
            answer = self._answer(message)
        except OSError as error:
            answer = describe_failure(error)
        except Exception as error:  # noqa: BLE001 - whatever a frame contains, it gets a reply
            answer = {"error": "%s: %s" % (type(error).__name__, error)}
        if answer is not None:
            self._channel.send(dict(answer, re=message.get("id")))

    def _answer(self, message: frames.Message) -> frames.Message | None:
        do = message["do"]
        if do == "open":
            return self._open(message)
        if do == "peers":
            for number, host, port, ranks in message["peers"]:
                self._addresses[int(number)] = (str(host), int(port))
                self._node_by_rank.update((int(rank), int(number)) for rank in ranks)
        elif do == "fetch":
            if message.get("beside") is not None:
                self._beside = int(message["beside"])
            for checkpoint, name, size, sha256, peers in message["files"]:
                self._orders.append((str(checkpoint), CopiedFile(name, size, sha256), [int(peer) for peer in peers]))
        elif do == "status":
            self._waiting = message
            self._loop.later(float(message["seconds"]), lambda: self._report(message))
            self._report_idle()
            return None
        elif do == "leave":
            self._loop.later(0, self._loop.stop)
        self._wake.set()
        return {}

    def _open(self, message: frames.Message) -> frames.Message:
        self._key, self._me = bytes.fromhex(message["key"]), int(message["me"])
        self._root = validate_folder(str(message["folder"]))
        self._pace = Pace(float(message["rate"]))
        self._acceptor.set_key(self._key, self._me)
        if self._listener is None:
            self._listener = open_listener(str(message["address"]))
        self._acceptor.listen(self._listener)
        return {"address": self._listener.getsockname()[0], "port": self._listener.getsockname()[1]}

    def _serve(self, link: socket.socket, _peer: int, keys: PeerKeys) -> None:
        def serve() -> None:
            try:
                serve_peer(link, self._root, self._pace, keys)
            finally:
                self._served.discard(link)

        self._served.add(link)
        threading.Thread(target=serve, daemon=True).start()

    def _report_idle(self) -> None:
        if self._waiting is not None and not self._orders and self._beside is None and not self._list_pending():
            self._report(self._waiting)

    def _report(self, message: frames.Message) -> None:
        if self._waiting is not message:
            return
        self._waiting = None
        lacking, self._lacking = self._lacking, []
        left = len(self._orders) + (self._beside is not None)
        answer = {"pending": self._list_pending(), "lacking": lacking, "left": left, "moved": self._moved}
        self._channel.send(dict(answer, re=message.get("id")))

    # -- the thread that fetches -----------------------------------------------------------------------------

    def _work(self) -> None:
        """Fetches what is wanted, one file after the other, then waits for more; after a failure, tries again later."""
        while True:
            self._wake.wait()
            self._wake.clear()
            while not self._fetch_all():
                self._wake.wait(self._retry)
                self._wake.clear()
                self._retry = min(MOST_RETRY_SECONDS, 2 * self._retry)
            self._loop.call_from_thread(self._report_idle)

    def _fetch_all(self) -> bool:
        """False after a failure."""
        while self._orders:
            self._follow_order(*self._orders[0])
            self._orders.popleft()
        if self._beside is not None:
            if why := self._fetch_beside(self._beside, FIRST_NODE, self._root):
                self._lacking.append(["", "metrics", why])
            self._beside = None
        while pending := self._list_pending():
            if not self._copy(str(pending[0][0])):
                return False
        return True

    def _follow_order(self, checkpoint: str, file: CopiedFile, peers: list[int]) -> None:
        """Fetches a file that the head wants; the next peer is asked for it if one can't send it."""
        why, until = "", time.monotonic() + SILENT_SECONDS
        try:
            with _open_closing(os.path.join(self._root, checkpoint), make=True) as folder:
                while peers and not file.is_in(folder):
                    try:
                        with self._use_peer(peers[0]) as peer:
                            peer.fetch(checkpoint, folder, file)
                    except Exception as error:  # noqa: BLE001 - what a peer sends may raise anything; the thread goes on
                        why = describe_error(error)
                        if isinstance(error, BlockingIOError) and time.monotonic() < until:
                            # Another process is still writing it.
                            time.sleep(RETRY_SECONDS)
                        else:
                            peers.pop(0)
                if file.is_in(folder):
                    return
        except Exception as error:  # noqa: BLE001 - as above
            why = describe_error(error)
        self._lacking.append([checkpoint, file.name, why[:200]])

    def _list_pending(self) -> list[list[object]]:
        """The checkpoints that are to be copied here and are not, the newest first, and the bytes that are missing."""
        found = []
        if self._node_by_rank:
            with contextlib.suppress(OSError), _open_closing(self._root) as root:
                for record in list_records(root):
                    is_mine = self._node_by_rank.get(record.leader) == self._me and record.source in self._node_by_rank
                    if is_mine and record.state != COPIED and record.checkpoint not in self._skipped:
                        missing = sum(file.size for file in record.list_missing())
                        found.append((record.serial, record.checkpoint, missing))
                    record.close()
        return [[checkpoint, missing] for _serial, checkpoint, missing in sorted(found, reverse=True)]

    def _copy(self, checkpoint: str) -> bool:
        """Copies what is missing of a checkpoint, or reports once why it can't; later there may be a newer one."""
        try:
            with _open_closing(self._root) as root:
                record = CopyRecord(root, checkpoint)
        except (OSError, ValueError):
            # It was removed meanwhile.
            return False
        try:
            beside = self._fetch_parts(record)
        except Exception as error:  # noqa: BLE001 - what a peer sends may raise anything; the thread goes on
            self._report_failure(record, error)
            return False
        finally:
            record.close()
        self._retry, self._why = RETRY_SECONDS, ""
        names = [file.name for file in record.files]
        if names:
            saved: CopiedFiles = {"checkpoint": checkpoint, "serial": record.serial, "files": names}
            self._send({"saved": saved})
        if beside:
            why = "metrics and trackers: %s" % beside
            failure: CopyFailure = {"checkpoint": checkpoint, "obstacle": "damaged", "why": why}
            self._send({"uncopied": failure})
        return True

    def _fetch_parts(self, record: CopyRecord) -> str:
        """Returns why what is beside the checkpoints of rank 0's node could not be trusted."""
        missing = record.list_missing()
        # Beside the copies, the disk has to take the next save of its own ranks.
        if missing and count_free_bytes(record) < count_needed_bytes(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if record.state != COPYING:
            record.set_state(COPYING)
        number = self._node_by_rank[record.source]
        for file in missing:
            with self._use_peer(number) as peer:
                peer.fetch(record.checkpoint, record.folder, file)
            self._retry = RETRY_SECONDS
        beside = ""
        if record.source == 0:
            beside = self._fetch_beside(number, "", os.path.join(self._root, FIRST_NODE))
        record.set_state(COPIED)
        return beside

    def _fetch_beside(self, number: int, place: str, target: str) -> str:
        """Metrics and trackers are no part of a checkpoint, and may fail; returns why, unless the peer is just gone."""
        try:
            with self._use_peer(number) as peer:
                peer.fetch_beside(place, target)
        except Exception as error:  # noqa: BLE001 - what a peer sends may raise anything; the thread goes on
            is_usual = isinstance(error, (OSError, PeerError)) and not isinstance(error, WrongContent)
            return "" if is_usual else describe_error(error)
        return ""

    def _report_failure(self, record: CopyRecord, error: Exception) -> None:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = describe_error(error)
        with contextlib.suppress(OSError):
            if is_full:
                why = "%d bytes are free, and %d are needed" % (count_free_bytes(record), count_needed_bytes(record))
                if record.state != FULL:
                    record.set_state(FULL)
        if isinstance(error, PeerRefused):
            self._skipped.add(record.checkpoint)
        if why != self._why and not isinstance(error, BlockingIOError):
            self._why = why
            obstacle: CopyObstacle = "full" if is_full else "damaged" if isinstance(error, WrongContent) else "peer"
            failure: CopyFailure = {"checkpoint": record.checkpoint, "obstacle": obstacle, "why": why}
            self._send({"uncopied": failure})

    @contextlib.contextmanager
    def _use_peer(self, number: int) -> Iterator[PeerFiles]:
        """The connection to a peer, which is opened if there is none; after an error, the next use opens another."""
        if number not in self._peers:
            self._peers[number] = PeerFiles(*self._dial(number), self._count_move)
        try:
            yield self._peers[number]
        except WrongContent as error:
            self._peers.pop(number).close()
            raise WrongContent("%s port %d: %s" % (*self._addresses[number], error)) from None
        except BaseException:
            self._peers.pop(number).close()
            raise

    def _count_move(self) -> None:
        self._moved += 1

    def _dial(self, number: int) -> tuple[socket.socket, PeerKeys]:
        if number not in self._addresses:
            raise PeerError("it has no copier")
        host, port = self._addresses[number]
        dialed: SimpleQueue[Dialed] = SimpleQueue()

        def dial() -> None:
            link = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            link.setblocking(False)
            handshake = DialerHandshake(
                self._loop,
                link,
                self._key,
                self._me,
                lambda link, _peer, keys: dialed.put((link, keys)),
                dialed.put,
            )
            handshake.start((host, port), number, CONNECT_SECONDS)

        self._loop.call_from_thread(dial)
        found = dialed.get()
        if isinstance(found, str):
            raise PeerError("%s port %d: %s" % (host, port, found))
        return found

    def _send(self, message: frames.Message) -> None:
        self._loop.call_from_thread(lambda: self._channel.send(message))


def count_free_bytes(record: CopyRecord) -> int:
    disk = os.fstatvfs(record.folder)
    return disk.f_bavail * disk.f_frsize


def count_needed_bytes(record: CopyRecord) -> int:
    return sum(file.size for file in record.list_missing()) + record.count_own_bytes()


def describe_error(error: Exception) -> str:
    """For a failure that nobody expected, with its class."""
    if isinstance(error, (OSError, PeerError)):
        return getattr(error, "strerror", None) or str(error)
    return "%s: %s" % (type(error).__name__, error)


@contextlib.contextmanager
def _open_closing(path: str, *, make: bool = False) -> Iterator[int]:
    folder = open_folder(path, make=make)
    try:
        yield folder
    finally:
        os.close(folder)
