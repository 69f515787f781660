"""The head's side of a tree transfer to a node: lists the target, sends packs of small files, deletes and stamps."""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from aboard.agent import frames
from aboard.agent.transfer.file_names import NAME_BYTES
from aboard.core.cluster.file_transfer_errors import build_hash_error
from aboard.core.decoding import decode
from aboard.lazy_dataclass import dataclass
from aboard.transport.files.file_channel import Digest
from aboard.transport.files.file_sender import SYNC_SECONDS, FileSender, RequestsInFlight

# Paths of a request: all of them must fit into one frame, even if JSON escapes each character with six.
REQUEST_CHARACTERS = 500_000
PACK_BYTES = 512 * 1024
# Limits how long a node can make us listen, and how many entries of its own it can make us hold.
MOST_ENTRIES = 20_000_000
MOST_EXTRA = 1_000_000
# A page of a listing is full, or took a second: it has at least as many rows unless it is the last.
LEAST_ROWS = 100
PATH_CHARACTERS = 4096

T = TypeVar("T")


class TreeEntry(NamedTuple):
    """What a node has at a path; `target` is a link's."""

    mode: int
    size: int
    mtime_ns: int
    target: str | None = None


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Many small files: for each directory the name, size, mode and modification time, then all their bytes."""

    groups: Sequence[tuple[str, Sequence[tuple[str, int, int, int]]]]
    data: bytes
    sha256: str


class TreeSender(FileSender):
    """Also sends trees: `root` is a directory on the node, and paths are relative to it."""

    async def list_entries(
        self, root: str, folders: Sequence[str], *, known: Callable[[str], bool], most_extra: int = 0
    ) -> dict[str, TreeEntry]:
        """What is in these directories, by path; links are not followed, and missing directories are empty.

        Entries that are not `known` here are left out, or counted up to a limit.
        """
        listing = _Listing(known, most_extra)
        for some in _split_requests(folders, len):
            reply = await self._ask("tree-list", root, folders=some)
            while self.parse_reply(reply, lambda reply: listing.add(some, reply)):  # noqa: B023 - used here
                reply = await self._ask("tree-more", root)
        return listing.found

    async def hash_files(self, root: str, paths: Sequence[str]) -> dict[str, str]:
        """The sha256 of each file; "" for an unreadable one."""
        sums: dict[str, str] = {}
        for some in _split_requests(paths, len):
            left = list(some)
            while left:
                reply = await self._ask("tree-sums", root, paths=left)
                sums |= self.parse_reply(reply, lambda reply: _parse_sums(left, reply))  # noqa: B023 - used here
                left = [path for path in left if path not in sums]
        return sums

    async def make(self, root: str, folders: Sequence[tuple[str, int]], links: Sequence[tuple[str, str]]) -> None:
        """Makes the root, directories (path, mode) and links (path, target)."""
        await self._ask("tree-make", root, folders=[], links=[])
        for some in _split_requests(folders, lambda folder: len(folder[0])):
            await self._ask("tree-make", root, folders=some, links=[])
        for pairs in _split_requests(links, lambda link: len(link[0]) + len(link[1])):
            await self._ask("tree-make", root, folders=[], links=pairs)

    async def delete(self, root: str, paths: Sequence[str]) -> int:
        """Deletes in this order; returns how many files and directories are gone."""
        deleted = 0
        for some in _split_requests(paths, len):
            reply = await self._ask("tree-delete", root, paths=some)
            deleted += self.parse_reply(reply, lambda reply: decode(int, reply["deleted"], strict=True))
        return deleted

    async def stamp(self, root: str, entries: Sequence[tuple[str, int, int]]) -> None:
        """Sets the mode and modification time of paths."""
        for some in _split_requests(entries, lambda entry: len(entry[0])):
            await self._ask("tree-stamp", root, entries=some)

    async def was_synced(self, root: str) -> bool:
        """Whether an earlier sync made this directory there."""
        reply = await self._ask("tree-synced", root)
        return self.parse_reply(reply, lambda reply: decode(bool, reply["synced"], strict=True))

    async def flush(self, root: str, *, equal: bool) -> None:
        """Makes the tree durable; one that is `equal`, without files of its own, counts as made by a sync."""
        await self._ask("tree-flush", root, within=SYNC_SECONDS, equal=equal)

    async def send_packs(
        self, root: str, pending: deque[T], load: Callable[[T], Awaitable[Pack]], on_taken: Callable[[int], None]
    ) -> None:
        """Sends packs, many in flight; each is removed from `pending` when the node has written it."""
        async with RequestsInFlight[Pack]() as requests:
            while pending:
                while len(requests) < len(pending) and (not requests or requests.has_room(PACK_BYTES)):
                    pack = await load(pending[len(requests)])
                    requests.add(pack, len(pack.data), self._send_pack(root, pack))
                pack, task = await requests.take_first()
                self._check_digest(root, pack, task.result())
                pending.popleft()
                on_taken(len(pack.data))

    async def _send_pack(self, root: str, pack: Pack) -> frames.Message:
        if not pack.data:
            return await self._ask("tree-pack", root, pack=pack.groups, sha256=pack.sha256)
        return await self.ask_process(
            "piece", self._patience, root, tail=pack.data, pack=pack.groups, sha256=pack.sha256
        )

    def _check_digest(self, root: str, pack: Pack, reply: frames.Message) -> None:
        digest = self.parse_reply(reply, lambda reply: decode(Digest, reply["sha256"], strict=True))
        if digest != pack.sha256:
            path = f"{root}/{pack.groups[0][0]}"
            raise build_hash_error(self.link.node.name, path, wanted=pack.sha256, found=digest)


class _Listing:
    """What a node lists, as far as it is kept."""

    def __init__(self, known: Callable[[str], bool], most_extra: int) -> None:
        self.found: dict[str, TreeEntry] = {}
        self._known = known
        self._most_extra = most_extra
        self._rows = self._extra = 0

    def add(self, folders: Sequence[str], reply: frames.Message) -> bool:
        """Adds the rows of a reply; True if there are more."""
        rows, more = reply["found"], reply["more"]
        if not isinstance(rows, list) or not isinstance(more, bool):
            raise TypeError("a listing of the wrong shape")
        if more and len(rows) < LEAST_ROWS:
            raise ValueError("a listing without progress")
        self._rows += len(rows)
        for path, entry in _parse_rows(folders, rows):
            if not self._known(path):
                self._extra += 1
                if not self._most_extra:
                    continue
            self.found[path] = entry
        if self._rows > MOST_ENTRIES or self._extra > self._most_extra > 0:
            raise ValueError(f"a listing of more than {self._most_extra or MOST_ENTRIES:,} files that are not here")
        return more


def _parse_rows(folders: Sequence[str], rows: list[Any]) -> Iterator[tuple[str, TreeEntry]]:
    """By hand, since a tree may have a million rows."""
    for number, name, mode, size, mtime_ns, *rest in rows:
        if not (type(number) is type(mode) is type(size) is type(mtime_ns) is int and type(name) is str):
            raise ValueError("a row of the wrong shape")
        if (
            not 0 <= number < len(folders)
            or size < 0
            or name in ("", ".", "..")
            or "/" in name
            or "\0" in name
            or len(name) > NAME_BYTES
        ):
            raise ValueError("a row with impossible values")
        if rest and (len(rest) > 1 or type(rest[0]) is not str or len(rest[0]) > PATH_CHARACTERS):
            raise ValueError("a link without a target")
        path = f"{folders[number]}/{name}" if folders[number] else name
        if len(path) > PATH_CHARACTERS:
            raise ValueError("a path that is too long")
        yield path, TreeEntry(mode, size, mtime_ns, rest[0] if rest else None)


def _parse_sums(paths: Sequence[str], reply: frames.Message) -> dict[str, str]:
    """The hashes of the requested paths; anything else in the reply is left out."""
    sums = reply["sums"]
    known = {path: decode(Digest, sums[path], strict=True) for path in paths if path in sums}
    if not known:
        raise ValueError("no hash that was asked for")
    return known


def _split_requests(items: Sequence[T], measure: Callable[[T], int]) -> Iterator[list[T]]:
    """Cuts a list into requests of limited size."""
    some: list[T] = []
    room = REQUEST_CHARACTERS
    for item in items:
        size = measure(item) + 40
        if some and size > room:
            yield some
            some, room = [], REQUEST_CHARACTERS
        some.append(item)
        room -= size
    if some:
        yield some
