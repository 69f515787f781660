"""A published checkpoint, read: verified file by file, and any part of any tensor put together from its slices."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from aboard.data.store.durable import sha256_of
from aboard.diagnoses import AboardError, checkpoint
from aboard.diagnoses.untrusted import visible
from aboard.lazy import dataclass
from aboard.train.checkpoint_folder import read_marker
from aboard.train.checkpoint_slices import DTYPES
from aboard.train.marker import Box, Marker, NoMarker, Part

TORCH = {name: dtype for dtype, name in DTYPES.items()}
_MODEL = "model/"


@dataclass(frozen=True, kw_only=True, eq=False)
class Saved:
    """One checkpoint by its folder; of the files that its marker names, there may be only some on this disk."""

    folder: Path
    marker: Marker

    @classmethod
    def open(cls, folder: Path) -> "Saved":
        try:
            return cls(folder=folder, marker=read_marker(folder))
        except NoMarker as error:
            seen = f"{folder} is no checkpoint: {error}"
            raise AboardError(checkpoint.UNUSABLE, seen, parent=folder.parent) from error

    @cached_property
    def here(self) -> Mapping[str, Part]:
        """The files that are on this disk, whole or not."""
        return {file.name: file for file in self.marker.files if (self.folder / file.name).exists()}

    @cached_property
    def _by_tensor(self) -> Mapping[str, dict[Box, list[Part]]]:
        found: dict[str, dict[Box, list[Part]]] = defaultdict(lambda: defaultdict(list))
        for file in self.marker.files:
            for name, box in file.slices.items():
                found[name][box].append(file)
        return found

    def verify(self, files: Iterable[str] | None = None, *, threads: int = 4) -> list[str]:
        """What is wrong with these files, or with all of them: missing, of another size, or of another content."""
        wanted = [file for file in self.marker.files if files is None or file.name in set(files)]
        with ThreadPoolExecutor(threads, thread_name_prefix="checkpoint-verify") as pool:
            return [why for why in pool.map(self._judge, wanted) if why]

    def model(self) -> tuple[str, ...]:
        """The model's tensors by their state_dict names; tied ones once, `marker.ties` has the other names."""
        return tuple(name.removeprefix(_MODEL) for name in self.marker.tensors if name.startswith(_MODEL))

    def tensor(self, name: str) -> Tensor:
        """The whole of one, by the name that the marker has for it."""
        whole = self.marker.tensors[name]
        found = torch.empty(whole.shape, dtype=TORCH[whole.dtype])
        with Reader(self) as reader:
            reader.fill(found, name, ((0,) * len(whole.shape), whole.shape))
        return found

    def cover(self, name: str, box: Box) -> Iterator[tuple[Box, list[Part]]]:
        """The stored slices that a part of a tensor is made of, each with the files that have it, all alike."""
        for stored, files in self._by_tensor[name].items():
            if prod(_common(box, stored)[1]):
                yield stored, files

    def _judge(self, file: Part) -> str | None:
        path = self.folder / file.name
        try:
            size = path.stat().st_size
            if size != file.bytes:
                return f"{file.name} has {size:,} bytes, and {file.bytes:,} were written"
            if sha256_of(path) != file.sha256:
                return f"{file.name} isn't what was written (its sha256 differs)"
        except FileNotFoundError:
            return f"{file.name} is missing"
        except OSError as error:
            return f"{file.name} can't be read ({error.strerror})"
        return None


class Reader:
    """Reads parts of tensors; files stay open from one to the next."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved
        self._open: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()

    def fill(self, target: Tensor, name: str, box: Box) -> None:
        """Copies the part `box` of a tensor into `target`, bit by bit, from whichever slices hold it."""
        left = target.numel()
        for stored, files in self._saved.cover(name, box):
            (start, size), file = _common(box, stored), self._pick(name, files)
            inside = [
                slice(at - low, at - low + length) for at, low, length in zip(start, stored[0], size, strict=True)
            ]
            into = [slice(at - low, at - low + length) for at, low, length in zip(start, box[0], size, strict=True)]
            part = self._read(file, name, inside)
            if part.shape != size:  # copy_ would stretch a smaller one
                raise self._damaged(name, f"{file.name} has another shape of it than the manifest")
            target[tuple(into)].copy_(part)
            left -= prod(size)
        if left:
            raise self._damaged(name, "slices of it are missing")

    def _pick(self, name: str, files: list[Part]) -> Part:
        for file in files:
            if file.name in self._saved.here:
                return file
        raise self._damaged(name, f"{files[0].name} is missing")

    def _read(self, file: Part, name: str, inside: list[slice]) -> Tensor:
        try:
            if file.name not in self._open:
                self._open[file.name] = safe_open(self._saved.folder / file.name, framework="pt")
            found: Tensor = self._open[file.name].get_slice(name)[tuple(inside)] if inside else self._scalar(file, name)
        except (OSError, SafetensorError) as error:
            raise self._damaged(name, f"{file.name}: {visible(str(error), 300)}") from error
        return found

    def _scalar(self, file: Part, name: str) -> Tensor:
        found: Tensor = self._open[file.name].get_tensor(name)
        return found

    def _damaged(self, name: str, why: str) -> AboardError:
        return AboardError(
            checkpoint.DAMAGED,
            f"{name} can't be read from {self._saved.folder}: {why}",
            "resume",
            folder=self._saved.folder,
        )


def _common(one: Box, other: Box) -> Box:
    """Where two boxes overlap; a size of zero where they don't."""
    start = tuple(max(a, b) for a, b in zip(one[0], other[0], strict=True))
    ends = [min(a + n, b + m) for a, n, b, m in zip(one[0], one[1], other[0], other[1], strict=True)]
    return start, tuple(max(0, end - at) for end, at in zip(ends, start, strict=True))
