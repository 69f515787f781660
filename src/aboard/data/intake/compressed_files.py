"""Opening a file of text, compressed or not, as a stream of bytes in bounded memory."""

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import BinaryIO, cast

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
# What a stream raises when its bytes are not what its name promised; zstd's errors are OSErrors.
STREAM_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)

# A row longer than this is no row that anybody trains on, and reading it would take the memory of all the others.
MAX_ROW = 64 << 20


def open_decompressed(path: str) -> BinaryIO:
    """The file's bytes, unpacked by the end of its name."""
    suffix = Path(path).suffix.lower()
    if suffix == ".gz":
        return cast("BinaryIO", gzip.open(path))
    if suffix == ".bz2":
        return cast("BinaryIO", bz2.open(path))
    if suffix == ".xz":
        return cast("BinaryIO", lzma.open(path))
    if suffix == ".zst":
        import pyarrow as pa  # noqa: PLC0415 - the extra `train` has it; the light install does not

        return io.BufferedReader(pa.input_stream(path, compression="zstd"), 1 << 20)
    return Path(path).open("rb", buffering=1 << 20)


def strip_compression_suffix(path: str) -> str:
    """The name without the ending that says how it is packed."""
    return path[: -len(Path(path).suffix)] if Path(path).suffix.lower() in COMPRESSED_SUFFIXES else path
