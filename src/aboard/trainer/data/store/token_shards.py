"""A set of token shards: any document or span of tokens is read in O(1) and bounded memory, by pread."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import numpy as np

from aboard.diagnoses.untrusted import Untrusted
from aboard.file_integrity import check_file_hash, check_file_size, make_damage_error
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.rows import Ids, Mask, RowLocation
from aboard.trainer.data.store.random_access_file import RandomAccessFile
from aboard.trainer.data.store.shard_index import ShardIndex
from aboard.trainer.data.store.shard_manifest import ShardManifest, read_manifest

# Open files of each kind: far below any limit, and enough for the shards that a rank reads at a time.
_MAX_OPEN_FILES = 64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenDocument:
    """One document; `at` is its first token in the whole set, mask is True for tokens in the loss."""

    at: int
    ids: Ids
    mask: Mask
    location: RowLocation
    whole: bool
    content: int


class TokenShards:
    """Opened by directory: file sizes are compared with the manifest, hashes only by `verify`.

    `names` are the current names of its origins, if they changed since the set was made.
    """

    def __init__(self, folder: Path, *, names: Sequence[Untrusted] | None = None) -> None:
        self.folder = folder
        self._names = names
        self.manifest: ShardManifest = read_manifest(folder)
        for file in self.manifest.files:
            check_file_size(folder, file)
        self._dtype = np.dtype(f"<u{self.manifest.token_bytes}")
        self._documents = (0, *accumulate(shard.documents for shard in self.manifest.shards))
        self._tokens = (0, *accumulate(shard.tokens for shard in self.manifest.shards))
        self._opened = lru_cache(maxsize=_MAX_OPEN_FILES)(lambda name: RandomAccessFile(folder / name))
        self._index = lru_cache(maxsize=_MAX_OPEN_FILES)(self.index)

    def __len__(self) -> int:
        return self._documents[-1]

    @property
    def identity(self) -> str:
        """A hash of all content, independent of the names of its origins."""
        files = "".join(f"{file.name} {file.bytes} {file.sha256}\n" for file in self.manifest.files)
        return sha256(files.encode()).hexdigest()

    def document(self, number: int) -> TokenDocument:
        """The document with this number in the set."""
        if not 0 <= number < len(self):
            raise IndexError(f"document {number} is out of range: there are {len(self)}")
        shard = bisect_right(self._documents, number) - 1
        entry = self._index(shard)[number - self._documents[shard]]
        at = self._tokens[shard] + int(entry["offset"])
        ids, mask = self.span(at, int(entry["length"]))
        where = self.where(int(entry["origin"]), int(entry["line"]))
        return TokenDocument(
            at=at, ids=ids, mask=mask, location=where, whole=bool(entry["whole"]), content=int(entry["content"])
        )

    def where(self, origin: int, line: int) -> RowLocation:
        origins = self.manifest.origins
        if origin >= len(origins):  # external sets may lack it
            return RowLocation(file=Untrusted(str(self.folder)), line=line, unit="row")
        name = origins[origin].name if self._names is None else self._names[origin]
        return RowLocation(file=name, line=line, unit=origins[origin].unit)

    def span(self, at: int, length: int) -> tuple[Ids, Mask]:
        """These tokens of the set and their mask; the first one has no loss, since nothing predicts it."""
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

    def index(self, shard: int) -> ShardIndex:
        """The complete index of one shard."""
        entry = self.manifest.shards[shard].index_file
        index = ShardIndex(self.folder / entry.name)
        if len(index) != self.manifest.shards[shard].documents:
            raise make_damage_error(
                self.folder / entry.name,
                f"it has {len(index)} rows, but the manifest says {self.manifest.shards[shard].documents}",
            )
        return index

    def starts(self, shard: int) -> tuple[int, int]:
        """The numbers of the shard's first document and first token in the set."""
        return self._documents[shard], self._tokens[shard]

    def verify(self) -> None:
        """Hashes every file; the error names the first one that differs from the manifest."""
        for file in self.manifest.files:
            check_file_hash(self.folder, file)
