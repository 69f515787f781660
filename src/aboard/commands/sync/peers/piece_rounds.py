"""Which large files nodes pass on to each other, in rounds, and the hashes of their pieces."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from aboard.commands.sync.node_upload import NodeUpload, UploadSource
from aboard.commands.sync.sync_directory import SyncDirectory
from aboard.durable_files import FileEntry
from aboard.lazy_dataclass import dataclass
from aboard.transport.files.peer_control import PieceTable

# Below this, a second connection costs more than it saves.
LARGE_BYTES = 8 * 1024 * 1024
PIECE_BYTES = 2 * 1024 * 1024
# Of a huge file: larger pieces instead of more.
MOST_PIECES_PER_FILE = 16384
# So much is hashed before it is sent; meanwhile, the previous round is sent.
ROUND_BYTES = 4 * 1024**3


@dataclass(frozen=True, kw_only=True)
class SharedFile:
    """A large file, the nodes that lack it, and those that have it and can pass it on."""

    place: int
    directory: SyncDirectory
    file: FileEntry
    lacking: frozenset[int]
    complete: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class RoundFile:
    shared: SharedFile
    table: PieceTable
    source: UploadSource


@dataclass(kw_only=True)
class PieceRound:
    """Files that are distributed together; pieces are numbered through all rounds."""

    first: int
    files: list[RoundFile]
    opened: ExitStack

    @property
    def count(self) -> int:
        return sum(file.table.count for file in self.files)

    def locate(self, piece: int) -> tuple[RoundFile, int, int]:
        """The file, offset and length of a piece, by its number in the round."""
        for file in self.files:
            number = self.first + piece - file.table.first
            if number < file.table.count:
                at = number * file.table.piece
                return file, at, min(file.table.piece, file.table.size - at)
        raise AssertionError("no such piece")

    def list_needs(self, number: int) -> int:
        """The pieces that a node lacks at first, as bits."""
        bits = 0
        for file in self.files:
            if number in file.shared.lacking:
                bits |= ((1 << file.table.count) - 1) << (file.table.first - self.first)
        return bits

    def count_bytes(self, bits: int) -> int:
        total = 0
        for file in self.files:
            own = bits >> (file.table.first - self.first) & ((1 << file.table.count) - 1)
            total += own.bit_count() * file.table.piece
            if own >> (file.table.count - 1):
                total -= file.table.count * file.table.piece - file.table.size
        return total


def choose_shared_files(uploads: Sequence[NodeUpload], directories: Sequence[SyncDirectory]) -> Iterator[SharedFile]:
    for place, directory in enumerate(directories):
        own_disk = [number for number, upload in enumerate(uploads) if directory.peers and upload.fills(place)]
        for file in {file.sha256: file for file in directory.files}.values():
            if file.bytes < LARGE_BYTES:
                continue
            lacking = frozenset(number for number in own_disk if uploads[number].lacks_file(place, file))
            if lacking and len(own_disk) > 1:
                yield SharedFile(
                    place=place, directory=directory, file=file, lacking=lacking, complete=frozenset(own_disk) - lacking
                )


def open_round(first: int, shared: Sequence[SharedFile]) -> PieceRound:
    """Opens the files and hashes their pieces; raises if a file has changed."""
    files = []
    with ExitStack() as opened:
        number = first
        for each in shared:
            source = opened.enter_context(UploadSource(each.directory, each.file))
            table = _hash_pieces(number, each, source)
            files.append(RoundFile(shared=each, table=table, source=source))
            number += table.count
        return PieceRound(first=first, files=files, opened=opened.pop_all())


def _hash_pieces(first: int, shared: SharedFile, source: UploadSource) -> PieceTable:
    size = shared.file.bytes
    piece = max(PIECE_BYTES, -(-size // MOST_PIECES_PER_FILE))
    whole, hashes = hashlib.sha256(), []
    for at in range(0, size, piece):
        data = source.read(at, min(piece, size - at))
        whole.update(data)
        hashes.append(hashlib.sha256(data).digest())
    if whole.hexdigest() != shared.file.sha256:
        source.judge()
    return PieceTable(
        first=first,
        folder=shared.directory.to,
        name=shared.file.name,
        size=size,
        sha256=shared.file.sha256,
        piece=piece,
        hashes=b"".join(hashes),
    )
