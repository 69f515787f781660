"""Files of checkpoints from peer to peer: what a node sends, as to the head, and how a node fetches them."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import threading
import time

from aboard.agent import frames
from aboard.agent.copies.copy_record import PART, STEP
from aboard.agent.copies.sealed_frames import SealedFrames, SealError
from aboard.agent.transfer.partial_file import PartialFile, open_locked
from aboard.agent.transfer.receiver_process import FrameReader, serve_frames
from aboard.agent.transfer.root_folder import TREE_SEPARATOR, open_folder
from aboard.agent.transfer.send_files import MOST_BYTES, SendFiles

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aboard.agent.copies.copy_record import CopiedFile
    from aboard.agent.transfer.peer_handshake import PeerKeys

# On the node that is not rank 0's: the copies of what rank 0's node has beside the checkpoints.
FIRST_NODE = ".first-node"
# What a peer may ask for, and what a receiver may write, below the directory that a request names: parts of
# checkpoints, whose hashes are known, and what is beside the checkpoints, which has none.
_HASHED = re.compile(r"%s/(%s)" % (STEP.pattern, PART.pattern), re.ASCII)
_FOLDER = "trackers"
_BESIDE = re.compile(r"metrics(\.old-\d{1,6})?\.jsonl|trackers(/(?!\.\.?(/|\Z)|\.aboard-)[^/\0]+){0,6}", re.ASCII)
REQUEST_BYTES = 8192
# How far a sender that is late may catch up, and how often it sends at the least.
BURST_SECONDS, TURN_SECONDS = 0.05, 0.25
SILENT_SECONDS = 30
# Of files without a hash, so that a peer can't fill the disk.
MOST_BESIDE, MOST_BESIDE_BYTES, MOST_PAGES = 2000, 4 << 30, 100
_BESIDE_PART = ".aboard-beside.part"


class PeerError(Exception):
    """The connection ended; what has arrived stays."""


class PeerRefused(PeerError):
    """The peer doesn't have the file, or refuses to send it."""


class WrongContent(PeerError):
    """What arrived is not what was asked for, or not from the peer; none of it is kept."""


class Pace:
    """A limit in bytes per second for all threads of a process; 0 is none."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.most = max(1, min(MOST_BYTES, int(rate * TURN_SECONDS))) if rate else MOST_BYTES

    def wait(self, count: int) -> None:
        """Until so many bytes may be sent."""
        if self._rate:
            with self._lock:
                free_at = max(self._free_at, time.monotonic() - BURST_SECONDS) + count / self._rate
                self._free_at = free_at
            time.sleep(max(0.0, free_at - time.monotonic()))


class SendCheckpoints(SendFiles):
    """A peer's requests: files of checkpoints, metrics and trackers of one directory, and nothing else."""

    def __init__(self, root: str, pace: Pace, keys: PeerKeys) -> None:
        super().__init__()
        self._top = root
        self._pace = pace
        self._sealed = SealedFrames(keys)
        self._is_hashed = False

    def unpack(self, body: memoryview) -> tuple[frames.Message, memoryview]:
        message, tail = self._sealed.unpack(body)
        self._is_hashed = _is_hashed(message)
        return message, tail

    def pack(self, answer: frames.Message, content: bytes | None) -> bytes:
        return self._sealed.pack(answer, content or b"", hashed=self._is_hashed)

    def take(self, message: frames.Message, tail: memoryview, deadline: float) -> frames.Message:
        if message["do"] not in ("list", "read") or message["folder"] not in ("", FIRST_NODE):
            raise ValueError("peers may not ask for this")
        folder = TREE_SEPARATOR.join(filter(None, (self._top, message["folder"])))
        size = min(int(message.get("bytes", 0)), self._pace.most)
        answer = super().take({**message, "folder": folder, "bytes": size}, tail, deadline)
        self._pace.wait(len(answer.get("tail", b"")))
        return answer

    def sends(self, name: str) -> bool:
        return _HASHED.fullmatch(name) is not None or _BESIDE.fullmatch(name) is not None

    def _open_root(self, path: str) -> int:
        return open_folder(path)


def serve_peer(link: socket.socket, root: str, pace: Pace, keys: PeerKeys) -> None:
    """Answers one peer, until it leaves or breaks the protocol."""
    with link, contextlib.suppress(OSError, ValueError):
        # The end of a reply must not wait until the peer has acknowledged the rest.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        folders = SendCheckpoints(root, pace, keys)
        serve_frames(link.fileno(), folders, REQUEST_BYTES, folders.unpack, folders.pack)


class PeerFiles:
    """The connection to a peer that has proved to have the key; it is of no more use after an error."""

    def __init__(self, link: socket.socket, keys: PeerKeys, on_progress: Callable[[], None]) -> None:
        self._link = link
        self._sealed = SealedFrames(keys)
        self._on_progress = on_progress
        link.setblocking(True)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            link.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", SILENT_SECONDS, 0))
        self._reader = FrameReader(link.fileno())

    def close(self) -> None:
        self._link.close()

    def fetch(self, checkpoint: str, folder: int, file: CopiedFile) -> None:
        """Fetches a file of a checkpoint into an open directory, or the rest of it."""
        partial = PartialFile(folder, file.name, file.size, file.sha256)
        try:
            while not partial.catch_up(time.monotonic() + 1):
                self._on_progress()
            for data in self._read("", "%s/%s" % (checkpoint, file.name), partial.at, file.size):
                partial.write(partial.at, data)
            if partial.publish() != file.sha256:
                raise WrongContent("its content is not what was saved")
        finally:
            partial.close()

    def fetch_beside(self, place: str, root: str) -> None:
        """Fetches metrics and trackers that changed since; they have no hash, but seals, and replace earlier ones."""
        listed = self._list(place)
        # What earlier lists brought counts, too: with other names each time, a peer would still fill the disk.
        files, left = _measure_beside(root, {name for name, _size, _modified in listed})
        for name, size, modified in listed[: max(0, MOST_BESIDE - files)]:
            parent, _, last = name.rpartition("/")
            folder = open_folder(root + (TREE_SEPARATOR + parent if parent else ""), make=True)
            try:
                left -= size
                if left >= 0 and not _is_same(folder, last, size, modified):
                    self._replace(folder, last, modified, self._read(place, name, 0, size))
            except PeerRefused:
                continue
            finally:
                os.close(folder)

    def _replace(self, folder: int, name: str, modified: int, content: Iterator[memoryview]) -> None:
        with open(open_locked(folder, _BESIDE_PART), "wb") as file:
            file.truncate(0)
            file.writelines(content)
            file.flush()
            os.utime(file.fileno(), ns=(modified, modified))
            os.fchmod(file.fileno(), 0o644)
            os.rename(_BESIDE_PART, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _list(self, place: str) -> list[tuple[str, int, int]]:
        """Name, size and modification time in ns of each file."""
        found: list[tuple[str, int, int]] = []
        for page in range(MOST_PAGES):
            reply, _data = self._ask(do="list", folder=place, page=page)
            try:
                fields = frames.decode_fields(reply, {"entries": [(str, str, int, int, int, str)], "done": bool})
                for name, kind, size, _mode, modified, _target in fields["entries"]:
                    if kind == "file":
                        if not _BESIDE.fullmatch(name) or name == _FOLDER:
                            raise WrongContent("it offers %r, which is none of the files that are copied" % name[:200])
                        found.append((name, size, modified * 1000))
            except ValueError as error:
                raise WrongContent("its list is none: %s" % error) from None
            if fields["done"] or not fields["entries"] or len(found) >= MOST_BESIDE:
                break
        return found[:MOST_BESIDE]

    def _read(self, place: str, name: str, at: int, size: int) -> Iterator[memoryview]:
        while at < size:
            _reply, data = self._ask(do="read", folder=place, name=name, at=at, bytes=size - at)
            if not 0 < len(data) <= size - at:
                raise PeerRefused("its file has another size")
            at += len(data)
            self._on_progress()
            yield data

    def _ask(self, **request: object) -> tuple[frames.Message, memoryview]:
        try:
            self._link.sendall(self._sealed.pack(request))
            body = self._reader.read()
            if body is None:
                raise PeerError("the connection ended")
            reply, data = self._sealed.unpack(body, hashed=_is_hashed(request))
        except SealError as error:
            raise WrongContent(str(error)) from None
        except BlockingIOError:
            raise PeerError("no data for %d s" % SILENT_SECONDS) from None
        except (OSError, ValueError) as error:
            raise PeerError("the connection ended: %s" % error) from None
        why = reply.get("error") or reply.get("failed")
        if why:
            raise PeerRefused(str(why.get("why") if isinstance(why, dict) else why)[:200])
        return reply, data


def _is_hashed(request: frames.Message) -> bool:
    """Whether the receiver knows the SHA-256 of what the request asks for; both ends decide it by the name alone."""
    return request.get("do") == "read" and _HASHED.fullmatch(str(request.get("name"))) is not None


def _measure_beside(root: str, wanted: set[str]) -> tuple[int, int]:
    """How many files there are besides the wanted ones, and how many bytes may still come."""
    files, left = 0, MOST_BESIDE_BYTES
    for at, _folders, names in os.walk(os.path.join(root, _FOLDER)):
        for name in names:
            path = os.path.join(at, name)
            if os.path.relpath(path, root) not in wanted:
                files += 1
                with contextlib.suppress(OSError):
                    left -= os.lstat(path).st_size
    return files, left


def _is_same(folder: int, name: str, size: int, modified: int) -> bool:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (size, modified)
