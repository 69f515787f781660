"""A set of token shards, read by pread: any document, or any span of tokens, in O(1) and bounded memory."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from aboard.data.rows import Ids, Mask, Where
from aboard.data.store.index import Index
from aboard.data.store.manifest import Manifest, read_manifest
from aboard.data.store.pread import Pread
from aboard.data.store.sound import damaged, judge_hash, judge_size
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass

# Open files of each kind: far below any limit, and enough for the shards that a rank reads at one time.
_OPEN = 64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Document:
    """One document; `at` is its first token in the whole set, mask is True where the loss is taken."""

    at: int
    ids: Ids
    mask: Mask
    where: Where
    whole: bool
    content: int


class TokenShards:
    """Opened by its directory; the sizes of all files are compared with the manifest, their hashes by `verify`.

    `names` are what its origins are called now, where that isn't what they were called when it was made.
    """

    def __init__(self, folder: Path, *, names: Sequence[Untrusted] | None = None) -> None:
        self.folder = folder
        self._names = names
        self.manifest: Manifest = read_manifest(folder)
        for file in self.manifest.files:
            judge_size(folder, file)
        self._dtype = np.dtype(f"<u{self.manifest.token_bytes}")
        self._documents = (0, *accumulate(shard.documents for shard in self.manifest.shards))
        self._tokens = (0, *accumulate(shard.tokens for shard in self.manifest.shards))
        self._opened = lru_cache(maxsize=_OPEN)(lambda name: Pread(folder / name))
        self._index = lru_cache(maxsize=_OPEN)(self.index)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self._documents[-1]

    @property
    def identity(self) -> str:
        """A hash of all content: the files' own hashes, whatever their origins are called."""
        files = "".join(f"{file.name} {file.bytes} {file.sha256}\n" for file in self.manifest.files)
        return sha256(files.encode()).hexdigest()

    def document(self, number: int) -> Document:
        """By its number in the set."""
        if not 0 <= number < len(self):
            raise IndexError(f"there is no document {number} among {len(self)}")
        shard = bisect_right(self._documents, number) - 1
        found = self._index(shard)[number - self._documents[shard]]
        at = self._tokens[shard] + int(found["offset"])
        ids, mask = self.span(at, int(found["length"]))
        where = self.where(int(found["origin"]), int(found["line"]))
        return Document(
            at=at, ids=ids, mask=mask, where=where, whole=bool(found["whole"]), content=int(found["content"])
        )

    def where(self, origin: int, line: int) -> Where:
        origins = self.manifest.origins
        if origin >= len(origins):  # a set that others wrote need not say
            return Where(file=Untrusted(str(self.folder)), line=line, unit="row")
        name = origins[origin].name if self._names is None else self._names[origin]
        return Where(file=name, line=line, unit=origins[origin].unit)

    def span(self, at: int, length: int) -> tuple[Ids, Mask]:
        """These tokens of the set and their mask; nothing predicts the first one, so it has no loss."""
        shard = bisect_right(self._tokens, at) - 1 if at < self._tokens[-1] else len(self.manifest.shards) - 1
        entry = self.manifest.shards[shard]
        start = at - self._tokens[shard]
        width = self._dtype.itemsize
        data = self._opened(entry.token_file.name).at(start * width, length * width)
        ids = np.frombuffer(data, self._dtype).astype(np.uint32)
        if entry.mask_file is None:
            mask = np.ones(length, np.bool_)
        else:
            first, last = start // 8, -(-(start + length) // 8)
            bits = np.frombuffer(self._opened(entry.mask_file.name).at(first, last - first), np.uint8)
            mask = np.unpackbits(bits, bitorder="little")[start % 8 :][:length].astype(np.bool_)
        mask[:1] = False
        return ids, mask

    def index(self, shard: int) -> Index:
        """The index of one shard, for those who want all of it."""
        entry = self.manifest.shards[shard].index_file
        index = Index(self.folder / entry.name)
        if len(index) != self.manifest.shards[shard].documents:
            raise damaged(self.folder / entry.name, f"it has {len(index)} rows, and the manifest says otherwise")
        return index

    def starts(self, shard: int) -> tuple[int, int]:
        """The numbers of the shard's first document and of its first token in the set."""
        return self._documents[shard], self._tokens[shard]

    def verify(self) -> None:
        """Reads every file; an error names the first whose content isn't what the manifest says."""
        for file in self.manifest.files:
            judge_hash(self.folder, file)

    def close(self) -> None:
        self._opened.cache_clear()
        self._index.cache_clear()
