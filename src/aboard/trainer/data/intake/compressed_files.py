"""Opens a text file, compressed or not, as a stream of bytes in bounded memory."""

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import BinaryIO, cast

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
# What a stream raises if its content doesn't match its file name; zstd's errors are OSErrors.
STREAM_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)

# A longer row is not training data, and reading it would exhaust the memory of the other workers.
MAX_ROW = 64 << 20


def open_decompressed(path: str) -> BinaryIO:
    """The file's bytes, decompressed according to its suffix."""
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
    """The name without its compression suffix."""
    return path[: -len(Path(path).suffix)] if Path(path).suffix.lower() in COMPRESSED_SUFFIXES else path
