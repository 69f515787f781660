"""The weight files of a model directory: every tensor by name, with random access to its rows.

Read by pread instead of mmap: not every cloud file system supports mmap, and the bytes read can be counted.
"""

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch

from aboard.core.decoding import DecodeError, decode_with, parse_json
from aboard.diagnoses import TrainerError
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass
from aboard.trainer.diagnoses import model_loading
from aboard.trainer.weights.model_files import PICKLED, SAFETENSORS, build_damage_error, list_weight_files
from aboard.trainer.weights.safetensors_writer import DTYPES_BY_NAME

# Rows are read in blocks, so that little is read but not yet cast.
PIECE_BYTES = 64 << 20
HEADER_LIMIT = 100 << 20
_MOST_DIMENSIONS = 64


class StoredTensor(Protocol):
    """One tensor in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def rows(self, start: int, stop: int) -> Iterator[torch.Tensor]:
        """These rows in order, in blocks, in the file's own type; a scalar is one row."""
        ...


def open_weights(folder: Path) -> Mapping[str, StoredTensor]:
    """Every tensor of a model by its name in the files: safetensors, or else what torch.save wrote."""
    files = list_weight_files(folder, SAFETENSORS)
    if files:
        return {name: entry for file in files for name, entry in open_safetensors(file).items()}
    files = list_weight_files(folder, PICKLED)
    if files:
        return {name: PickledTensor(tensor) for file in files for name, tensor in _load_pickle(file).items()}
    raise TrainerError(model_loading.NO_WEIGHTS, f"{folder} has neither model.safetensors nor its index")


def read_whole(stored: StoredTensor) -> torch.Tensor:
    """Reads a whole tensor."""
    pieces = list(stored.rows(0, stored.shape[0] if stored.shape else 1))
    return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).view(stored.shape)


@dataclass(frozen=True, kw_only=True)
class SafetensorsTensor:
    """A tensor in a safetensors file: contiguous, row by row."""

    file: "OpenFile"
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    def rows(self, start: int, stop: int) -> Iterator[torch.Tensor]:
        row = prod(self.shape[1:]) * self.dtype.itemsize
        step = max(1, PIECE_BYTES // max(row, 1))
        for first in range(start, stop, step):
            count = min(step, stop - first)
            data = torch.empty(count * row, dtype=torch.uint8)
            self.file.into(data, self.offset + first * row)
            yield data.view(self.dtype).view(count, *self.shape[1:])


@dataclass(frozen=True)
class PickledTensor:
    """A tensor in a file of torch.save; the file is mapped, so that only accessed parts are read."""

    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def rows(self, start: int, stop: int) -> Iterator[torch.Tensor]:
        yield self.tensor[start:stop] if self.tensor.dim() else self.tensor.view(1)


class OpenFile:
    """A file that many threads read; closed with the last reference."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def into(self, data: torch.Tensor, offset: int) -> None:
        """Fills the tensor with the bytes at an offset."""
        view: memoryview = memoryview(data.numpy())  # type: ignore[arg-type] # numpy's arrays are buffers
        while view:
            count = os.preadv(self._handle, [view], offset)
            if not count:
                raise build_damage_error(self.path, f"it ends before byte {offset + len(view)}")
            view, offset = view[count:], offset + count

    @cached_property
    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)


def open_safetensors(path: Path) -> dict[str, SafetensorsTensor]:
    """Every tensor of one file."""
    try:
        file = OpenFile(path)
    except OSError as error:
        raise build_damage_error(path, f"it can't be read ({error.strerror})") from error
    length = int.from_bytes(_read_bytes(file, 0, 8), "little")
    if length > HEADER_LIMIT:
        raise build_damage_error(path, "its header is longer than the format allows")
    if 8 + length > file.size:
        raise build_damage_error(path, f"it ends before byte {8 + length}")
    try:
        entries, spans = decode_with(_parse_header, _read_bytes(file, 8, length))
    except DecodeError as error:
        raise build_damage_error(path, "its header is not a valid safetensors header") from error
    ends = max((end for _start, end in spans), default=0)
    if 8 + length + ends > file.size:
        raise build_damage_error(path, f"it has {file.size} bytes, but its header describes {8 + length + ends}")
    if any(start < end for (_, end), (start, _) in pairwise(spans)):
        raise build_damage_error(path, "two of its tensors overlap")
    return {name: _make_tensor(file, name, each, 8 + length) for name, each in entries.items()}


def _parse_header(data: bytes) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    entries = parse_json(data)
    entries.pop("__metadata__", None)
    return entries, sorted(_check_entry(each) for each in entries.values())


def _check_entry(entry: Mapping[str, Any]) -> tuple[int, int]:
    """Where the tensor's bytes are; raises ValueError if they are not those of its shape and type."""
    (start, end), shape, dtype = entry["data_offsets"], entry["shape"], entry["dtype"]
    sizes = [start, end, *shape]
    if len(sizes) > _MOST_DIMENSIONS or any(type(each) is not int or each < 0 for each in sizes):
        raise ValueError("offsets and sizes must be counts")
    if dtype in DTYPES_BY_NAME and end - start != prod(shape) * DTYPES_BY_NAME[dtype].itemsize:
        raise ValueError("its bytes are not those of its shape")
    return start, end


def _read_bytes(file: OpenFile, offset: int, size: int) -> bytes:
    data = torch.empty(size, dtype=torch.uint8)
    file.into(data, offset)
    return data.numpy().tobytes()


def _make_tensor(file: OpenFile, name: str, entry: Mapping[str, Any], base: int) -> SafetensorsTensor:
    dtype = DTYPES_BY_NAME.get(entry["dtype"])
    if dtype is None:
        raise TrainerError(
            model_loading.QUANTIZED,
            f"{escape_text(name)} in {file.path} has type {escape_text(str(entry['dtype']))}, which full"
            " training doesn't support",
        )
    offset = base + entry["data_offsets"][0]
    return SafetensorsTensor(file=file, shape=tuple(entry["shape"]), dtype=dtype, offset=offset)


def _load_pickle(path: Path) -> dict[str, torch.Tensor]:
    try:
        # Only tensors: with `weights_only`, what a pickle would run is refused.
        loaded: object = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # whatever the readers of zip archives and pickles raise
        why = escape_text(str(error).partition("\n")[0], 200)
        raise build_damage_error(path, f"it can't be loaded as tensors alone ({why})") from error
    if not isinstance(loaded, dict) or not all(isinstance(each, torch.Tensor) for each in loaded.values()):
        raise build_damage_error(path, "it contains objects other than named tensors")
    return loaded
