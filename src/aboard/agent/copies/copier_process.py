"""The copier of a node: sends parts of checkpoints to peers, and fetches those that this disk is to have.

While a run trains, it is a niced child of the supervisor: it fetches what `copies.json` of each new checkpoint lists,
from the node that wrote it. Before a run resumes, it is a child of the bridge, and fetches what the head lists.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque

from aboard.agent import frames
from aboard.agent.channel import Channel
from aboard.agent.copies.copy_record import COPIED, COPYING, FULL, CopyRecord, WantedFile, list_records
from aboard.agent.copies.file_fetch import FileFetch, PeerLost, PeerRefused, WrongContent
from aboard.agent.copies.file_server import FIRST_NODE, FileServer, Pace
from aboard.agent.event_loop import EventLoop
from aboard.agent.network.peer_listener import bind_listener
from aboard.agent.transfer.file_names import describe_failure
from aboard.agent.transfer.peer_acceptor import PeerAcceptor, resolve_address
from aboard.agent.transfer.peer_handshake import DialerHandshake
from aboard.agent.transfer.receive_folders import validate_folder
from aboard.agent.transfer.root_folder import open_folder

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT_SECONDS = 5.0
# Between attempts, doubled up to the second.
RETRY_SECONDS, MOST_RETRY_SECONDS = 0.5, 15.0
NICENESS = 10
# Of files without a hash, so that a peer can't fill the disk.
MOST_BESIDE_BYTES = 4 << 30


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
    """The parent's requests: open, peers, saved, fetch, status. One file is fetched at a time."""

    def __init__(self, loop: EventLoop, fd: int, listener: socket.socket | None) -> None:
        self._loop = loop
        self._channel = Channel(loop, (fd, fd), self._take, loop.stop)
        self._acceptor = PeerAcceptor(loop, self._serve, lambda: len(self._served))
        self._listener = listener
        self._served: set[FileServer] = set()
        self._pace = Pace(0)
        self._key, self._me = b"", -1
        self._root, self._root_fd = "", -1
        # By number: where a peer listens; and which peer has a rank.
        self._addresses: dict[int, tuple[str, int]] = {}
        self._node_by_rank: dict[int, int] = {}
        self._links: dict[int, FileFetch] = {}
        self._record: CopyRecord | None = None
        # Checkpoints that their source no longer has, or that are not for this disk any more.
        self._skipped: set[str] = set()
        self._orders: deque[tuple[str, WantedFile, list[int]]] = deque()
        self._lacking: list[list[str]] = []
        # The peer with a copy of what rank 0's node has beside the checkpoints, if the head wants it here.
        self._beside: int | None = None
        self._fetched = 0
        self._is_busy = False
        self._retry = RETRY_SECONDS
        self._why = ""
        self._waiting: frames.Message | None = None

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
            self._go_on()
        elif do == "saved":
            self._go_on()
        elif do == "fetch":
            for checkpoint, name, size, sha256, peers in message["files"]:
                self._orders.append((str(checkpoint), WantedFile(name, size, sha256), [int(peer) for peer in peers]))
            if message.get("beside") is not None:
                self._beside = int(message["beside"])
            self._go_on()
        elif do == "status":
            self._waiting = message
            self._loop.later(float(message["seconds"]), lambda: self._report(message))
            self._report_idle()
            return None
        else:
            self._loop.later(0, self._loop.stop)
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

    def _serve(self, link: socket.socket, _peer: int) -> None:
        self._served.add(FileServer(self._loop, link, self._root, self._pace, self._served.discard))

    def _report_idle(self) -> None:
        is_idle = not self._is_busy and not self._orders and self._beside is None
        if self._waiting is not None and is_idle and not self._list_open():
            self._report(self._waiting)

    def _report(self, message: frames.Message) -> None:
        if self._waiting is not message:
            return
        self._waiting = None
        pending = [
            [record.checkpoint, sum(file.size for file in record.list_missing())] for record in self._list_open()
        ]
        lacking, self._lacking = self._lacking, []
        answer = {
            "pending": pending,
            "why": self._why,
            "lacking": lacking,
            "left": len(self._orders) + self._is_busy + (self._beside is not None),
        }
        answer["fetched"] = self._fetched + sum(link.received for link in self._links.values())
        self._channel.send(dict(answer, re=message.get("id")))

    # -- what to fetch next ----------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Starts the next file, unless one is under way."""
        if self._is_busy:
            return
        try:
            if self._orders:
                self._follow_order()
            elif self._beside is not None:
                peer, self._beside, self._is_busy = self._beside, None, True
                self._fetch_beside(peer, FIRST_NODE, "", self._end_order)
            elif self._addresses:
                self._copy_newest()
        except OSError as error:
            # The checkpoint was removed meanwhile, or the disk fails: the ranks say more about it.
            self._give_up(error)
        self._report_idle()

    def _end_order(self) -> None:
        self._is_busy = False
        self._loop.later(0, self._go_on)

    def _follow_order(self) -> None:
        """A file that the head wants; the next peer is asked for it if one can't send it."""
        checkpoint, file, peers = self._orders[0]
        folder = open_folder(os.path.join(self._root, checkpoint), make=True)
        if file.is_in(folder) or not peers:
            if not file.is_in(folder):
                self._lacking.append([checkpoint, file.name, self._why[:200]])
            os.close(folder)
            self._orders.popleft()
            self._loop.later(0, self._go_on)
            return
        peer = peers.pop(0)

        def done(error: Exception | None) -> None:
            os.close(folder)
            self._is_busy = False
            self._why = "" if error is None else describe_error(error)
            if isinstance(error, BlockingIOError):
                # Another process is still writing it.
                peers.insert(0, peer)
            self._loop.later(0 if error is None else RETRY_SECONDS, self._go_on)

        self._is_busy = True
        self._with_peer(peer, lambda link: link.fetch(checkpoint, folder, file, done), done)

    def _copy_newest(self) -> None:
        """The next file of the newest checkpoint that is to be copied here; one under way is finished first."""
        record = self._record
        if record is None:
            open_records = self._list_open()
            if not open_records:
                return
            record = self._record = CopyRecord(self._open_root(), open_records[0].checkpoint)
            if not self._has_room(record):
                return
            if record.state != COPYING:
                record.set_state(COPYING)
        missing = record.list_missing()
        peer = self._node_by_rank[record.source]
        self._is_busy = True
        if missing:
            file = missing[0]
            self._with_peer(
                peer,
                lambda link: link.fetch(record.checkpoint, record.folder, file, self._finish_file),
                self._finish_file,
            )
        elif record.source == 0:
            self._fetch_beside(peer, "", FIRST_NODE, self._finish_record)
        else:
            self._finish_record()

    def _list_open(self) -> list[CopyRecord]:
        """The records of checkpoints that are to be copied here and are not, the newest first; closed."""
        if not self._root or not self._node_by_rank:
            return []
        found = []
        with contextlib.suppress(OSError):
            for record in list_records(self._open_root()):
                record.close()
                is_mine = self._node_by_rank.get(record.leader) == self._me and record.source in self._node_by_rank
                if is_mine and record.state != COPIED and record.checkpoint not in self._skipped:
                    found.append(record)
        return sorted(found, key=lambda record: -record.serial)

    def _open_root(self) -> int:
        """The output directory; the descriptor of the last call is closed."""
        fd = open_folder(self._root)
        if self._root_fd >= 0:
            os.close(self._root_fd)
        self._root_fd = fd
        return fd

    def _has_room(self, record: CopyRecord) -> bool:
        """Whether the disk takes the copies and, beside them, the next save of its own ranks."""
        disk = os.fstatvfs(record.folder)
        needed = sum(file.size for file in record.list_missing())
        if not needed or disk.f_bavail * disk.f_frsize >= needed + record.count_own_bytes():
            return True
        self._give_up(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        return False

    def _finish_file(self, error: Exception | None) -> None:
        self._is_busy = False
        if error is None:
            self._retry = RETRY_SECONDS
            self._go_on()
        else:
            self._give_up(error)

    def _finish_record(self) -> None:
        record, self._record, self._is_busy = self._record, None, False
        if record is not None:
            try:
                if not record.list_missing():
                    record.set_state(COPIED)
                    names = [file.name for file in record.files]
                    self._channel.send(
                        {"saved": {"checkpoint": record.checkpoint, "serial": record.serial, "files": names}}
                    )
            except OSError as error:
                self._record = record
                self._give_up(error)
                return
            record.close()
        self._why = ""
        self._go_on()

    def _give_up(self, error: Exception) -> None:
        """Reports once why a checkpoint is not copied, and tries again later: then perhaps a newer one."""
        record, self._record, self._is_busy = self._record, None, False
        if record is None:
            return
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = describe_error(error)
        with contextlib.suppress(OSError):
            if full:
                disk = os.fstatvfs(record.folder)
                needed = sum(file.size for file in record.list_missing()) + record.count_own_bytes()
                why = "%d bytes are free, and %d are needed" % (disk.f_bavail * disk.f_frsize, needed)
                if record.state != FULL:
                    record.set_state(FULL)
        record.close()
        if isinstance(error, PeerRefused):
            self._skipped.add(record.checkpoint)
        if why != self._why and not isinstance(error, BlockingIOError):
            self._why = why
            obstacle = "full" if full else "damaged" if isinstance(error, WrongContent) else "peer"
            self._channel.send({"uncopied": {"checkpoint": record.checkpoint, "obstacle": obstacle, "why": why}})
        self._loop.later(self._retry, self._go_on)
        self._retry = min(MOST_RETRY_SECONDS, 2 * self._retry)

    # -- peers -----------------------------------------------------------------------------------------------

    def _with_peer(
        self, peer: int, act: Callable[[FileFetch], None], on_failed: Callable[[Exception | None], None]
    ) -> None:
        """Acts on the connection to a peer, which is opened first if there is none."""
        if peer in self._links:
            act(self._links[peer])
            return
        if peer not in self._addresses:
            on_failed(PeerLost("it has no copier"))
            return

        def take_in(link: socket.socket, peer: int) -> None:
            self._links[peer] = FileFetch(self._loop, link, peer, self._forget)
            act(self._links[peer])

        host, port = self._addresses[peer]
        link = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        link.setblocking(False)
        handshake = DialerHandshake(
            self._loop,
            link,
            self._key,
            self._me,
            take_in,
            lambda why: on_failed(PeerLost("%s port %d: %s" % (host, port, why))),
        )
        handshake.start((host, port), peer, CONNECT_SECONDS)

    def _forget(self, peer: int) -> None:
        link = self._links.pop(peer, None)
        if link is not None:
            self._fetched += link.received

    def _fetch_beside(self, peer: int, source: str, target: str, on_done: Callable[[], None]) -> None:
        """Fetches metrics and trackers that changed since; they are no part of a checkpoint, and may fail."""
        try:
            root = open_folder(os.path.join(self._root, target) if target else self._root, make=True)
        except OSError:
            on_done()
            return
        waiting: deque[tuple[str, int, int]] = deque()

        def leave(_error: Exception | None = None) -> None:
            os.close(root)
            on_done()

        def go_on(error: Exception | None = None) -> None:
            if not waiting or not (error is None or isinstance(error, PeerRefused)):
                leave()
                return
            path, size, modified = waiting.popleft()
            self._links[peer].fetch_beside(source, path, size, modified, root, go_on)

        def take(files: list[list[object]]) -> None:
            total = 0
            for path, size, modified in files:
                if not isinstance(path, str) or type(size) is not int or type(modified) is not int or size < 0:
                    continue
                total += size
                if total <= MOST_BESIDE_BYTES and not _is_same(root, path, size, modified):
                    waiting.append((path, size, modified))
            go_on()

        self._with_peer(peer, lambda link: link.list_beside(source, take, leave), leave)


def describe_error(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _is_same(root: int, path: str, size: int, modified: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        status = os.stat(path, dir_fd=root, follow_symlinks=False)
        return (status.st_size, status.st_mtime_ns) == (size, modified)
    return False
