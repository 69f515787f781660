"""Packs of a tree's small files: each is read and hashed once for all nodes."""

import asyncio
import hashlib
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import TypeVar

from aboard.commands.sync.trees.source_tree import SourceTree
from aboard.commands.sync.trees.tree_difference import SMALL_BYTES
from aboard.content_hash_cache import make_unreadable_error
from aboard.transport.files.tree_sender import PACK_BYTES, Pack

FILES_PER_PACK = 1000
# Packs that stay in memory for the nodes that are behind; slower ones cause another read.
PACKS_KEPT = 48

T = TypeVar("T")
PackKey = tuple[int, tuple[str, ...] | None]
"""The number of a pack, and the files of it that a node lacks; None for all."""


class FilePacks:
    """The small files of a tree, cut into packs in the order of the tree."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree
        small = [path for path, status in tree.files.items() if status.size <= SMALL_BYTES]
        limits = {"most_bytes": PACK_BYTES, "most_items": FILES_PER_PACK}
        self._packs = list(split_batches(small, lambda path: tree.files[path].size, **limits))
        self._kept: OrderedDict[int, asyncio.Task[Pack]] = OrderedDict()
        self._sums: dict[str, str] = {}

    def select(self, lacking: Iterable[str]) -> deque[PackKey]:
        """The packs that hold these files."""
        wanted = set(lacking)
        keys: deque[PackKey] = deque()
        for number, paths in enumerate(self._packs):
            some = tuple(path for path in paths if path in wanted)
            if some:
                keys.append((number, None if len(some) == len(paths) else some))
        return keys

    async def load(self, key: PackKey) -> Pack:
        number, some = key
        if some is not None:
            return await asyncio.to_thread(_read_pack, self._tree, some)
        task = self._kept.get(number)
        if task is None:
            work = asyncio.to_thread(_read_pack, self._tree, self._packs[number])
            task = self._kept[number] = asyncio.create_task(work)
            if len(self._kept) > PACKS_KEPT:
                self._kept.popitem(last=False)
        return await asyncio.shield(task)

    async def hash_files(self, paths: Sequence[str]) -> dict[str, str]:
        """The sha256 of files here, each read once for all nodes."""
        new = [path for path in paths if path not in self._sums]
        if new:
            self._sums |= await asyncio.to_thread(_hash_files, self._tree, new)
        return {path: self._sums[path] for path in paths}


def split_batches(
    items: Iterable[T], count_bytes: Callable[[T], int], *, most_bytes: int, most_items: float = inf
) -> Iterator[list[T]]:
    """Batches within these limits, in order; an item above them is a batch of its own."""
    batch: list[T] = []
    room = most_bytes
    for item in items:
        size = count_bytes(item)
        if batch and (size > room or len(batch) >= most_items):
            yield batch
            batch, room = [], most_bytes
        batch.append(item)
        room -= size
    if batch:
        yield batch


def _read_pack(tree: SourceTree, paths: Sequence[str]) -> Pack:
    groups: list[tuple[str, list[tuple[str, int, int, int]]]] = []
    contents: list[bytes] = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        found = _read_file(tree, path)
        if found is None:
            continue
        content, mtime_ns = found
        if not groups or groups[-1][0] != folder:
            groups.append((folder, []))
        groups[-1][1].append((name, len(content), tree.files[path].mode, mtime_ns))
        contents.append(content)
    data = b"".join(contents)
    return Pack(groups=groups, data=data, sha256=hashlib.sha256(data).hexdigest())


def _read_file(tree: SourceTree, path: str) -> tuple[bytes, int] | None:
    """The content and the time of the file as it is now; None for one that was deleted since it was listed."""
    try:
        fd = os.open(f"{tree.root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            # A file that is being written is sent as it is now; the next sync sees that it changed.
            content = os.read(fd, min(status.st_size, SMALL_BYTES))
        finally:
            os.close(fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise make_unreadable_error(tree.root / path, error) from error
    return content, status.st_mtime_ns


def _hash_files(tree: SourceTree, paths: Sequence[str]) -> dict[str, str]:
    contents = {path: _read_file(tree, path) for path in paths}
    return {path: hashlib.sha256(found[0]).hexdigest() if found else "" for path, found in contents.items()}
