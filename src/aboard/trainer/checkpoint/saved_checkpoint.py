"""Reads a published checkpoint: verifies its files, and assembles any part of any tensor from slices."""

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

from aboard.diagnoses import AboardError, TrainerError
from aboard.diagnoses.untrusted import escape_text
from aboard.durable_files import compute_sha256
from aboard.foreign_files import require_regular_file
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint.checkpoint_folder import read_marker
from aboard.trainer.checkpoint.checkpoint_parts import MODEL_PREFIX, OPTIMIZER_PREFIX, list_slices, select_parts
from aboard.trainer.checkpoint.commit_marker import Box, CheckpointFile, CommitMarker, MarkerError
from aboard.trainer.diagnoses import checkpoint
from aboard.trainer.weights.safetensors_writer import DTYPES_BY_NAME


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedCheckpoint:
    """One checkpoint by folder; this disk may have only some of the files that its marker names."""

    folder: Path
    marker: CommitMarker

    @classmethod
    def open(cls, folder: Path) -> "SavedCheckpoint":
        try:
            marker = read_marker(folder)
            check_references(marker)
        except MarkerError as error:
            seen = f"{folder} is not a checkpoint: {error}"
            raise TrainerError(checkpoint.UNUSABLE, seen, parent=folder.parent) from error
        return cls(folder=folder, marker=marker)

    @cached_property
    def here(self) -> Mapping[str, CheckpointFile]:
        """The files that are on this disk, intact or not."""
        return {file.name: file for file in self.marker.files if (self.folder / file.name).exists()}

    @cached_property
    def _by_tensor(self) -> Mapping[str, dict[Box, list[CheckpointFile]]]:
        files_by_box: dict[str, dict[Box, list[CheckpointFile]]] = defaultdict(lambda: defaultdict(list))
        for file in self.marker.files:
            for name, box in file.slices.items():
                files_by_box[name][box].append(file)
        return files_by_box

    def verify(self, files: Iterable[str] | None = None, *, threads: int = 4) -> list[str]:
        """Problems of these files, or of all: missing, wrong size, or wrong content."""
        selected = [file for file in self.marker.files if files is None or file.name in set(files)]
        with ThreadPoolExecutor(threads, thread_name_prefix="checkpoint-verify") as pool:
            return [why for why in pool.map(self._judge, selected) if why]

    def verify_model(self) -> list[str]:
        """Problems of the files that the model's tensors are read from; the others may be on other disks."""
        slices = list_slices(self.marker.files, prefix=MODEL_PREFIX)
        chosen = select_parts(self.marker, slices, available=self.here)
        return self.verify([file.name for file in (*chosen.files, *chosen.lacking)])

    def model(self) -> tuple[str, ...]:
        """The model's tensors by state_dict name; tied ones once, `marker.ties` has the aliases."""
        return tuple(name.removeprefix(MODEL_PREFIX) for name in self.marker.tensors if name.startswith(MODEL_PREFIX))

    def tensor(self, name: str) -> Tensor:
        """One whole tensor, by its name in the marker."""
        whole = self.marker.tensors[name]
        # Not empty: a marker whose slices overlap would leave some of this process's memory in it.
        tensor = torch.zeros(whole.shape, dtype=DTYPES_BY_NAME[whole.dtype])
        with SliceReader(self) as reader:
            reader.fill(tensor, name, ((0,) * len(whole.shape), whole.shape))
        return tensor

    def cover(self, name: str, box: Box) -> Iterator[tuple[Box, list[CheckpointFile]]]:
        """The stored slices that make up a region of a tensor, each with the files that contain a copy of it."""
        for stored, files in self._by_tensor[name].items():
            if prod(_intersect_boxes(box, stored)[1]):
                yield stored, files

    def _judge(self, file: CheckpointFile) -> str | None:
        path = self.folder / file.name
        try:
            status = path.stat()
            # A pipe or device never ends, and has no size, either.
            require_regular_file(status)
            size = status.st_size
            if size != file.bytes:
                return f"{file.name} has {size:,} bytes, but {file.bytes:,} were written"
            if compute_sha256(path) != file.sha256:
                return f"{file.name} isn't what was written (its sha256 differs)"
        except FileNotFoundError:
            return f"{file.name} is missing"
        except OSError as error:
            return f"{file.name} can't be read ({error.strerror})"
        return None


class SliceReader:
    """Reads regions of tensors; files stay open between reads."""

    def __init__(self, saved: SavedCheckpoint) -> None:
        self._saved = saved
        self._open: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()

    def fill(self, target: Tensor, name: str, box: Box) -> None:
        """Copies the region `box` of a tensor into `target`, bit by bit, from the slices that contain it."""
        left = target.numel()
        for stored, files in self._saved.cover(name, box):
            overlap, file = _intersect_boxes(box, stored), self._pick(name, files)
            part = self._read(file, name, _locate_inside(overlap, stored))
            if part.shape != overlap[1]:  # copy_ would broadcast a smaller one
                raise self._make_damaged_error(name, f"{file.name} has a shape that differs from the manifest")
            target[_locate_inside(overlap, box)].copy_(part)
            left -= prod(overlap[1])
        if left:
            raise self._make_damaged_error(name, "slices of it are missing")

    def _pick(self, name: str, files: list[CheckpointFile]) -> CheckpointFile:
        for file in files:
            if file.name in self._saved.here:
                return file
        raise self._make_damaged_error(name, f"{files[0].name} is missing")

    def _read(self, file: CheckpointFile, name: str, inside: tuple[slice, ...]) -> Tensor:
        try:
            if file.name not in self._open:
                self._open[file.name] = safe_open(self._saved.folder / file.name, framework="pt")
            opened = self._open[file.name]
            tensor: Tensor = opened.get_slice(name)[inside] if inside else opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise self._make_damaged_error(name, f"{file.name}: {escape_text(str(error), 300)}") from error
        return tensor

    def _make_damaged_error(self, name: str, why: str) -> AboardError:
        folder = self._saved.folder
        return TrainerError(checkpoint.DAMAGED, f"{name} can't be read from {folder}: {why}", "resume", folder=folder)


def check_references(marker: CommitMarker) -> None:
    """A marker may come from somebody else: what it names must exist in it, with as many dimensions."""
    if unknown := next((each.dtype for each in marker.tensors.values() if each.dtype not in DTYPES_BY_NAME), None):
        raise MarkerError(f"its tensors have the unknown type {escape_text(unknown)}")
    shapes = {name: len(each.shape) for name, each in marker.tensors.items()}
    if not all(f"{MODEL_PREFIX}{name}" in shapes for name in marker.ties.values()):
        raise MarkerError("a tied tensor is missing")
    states = [name.removeprefix(OPTIMIZER_PREFIX) for name in shapes if name.startswith(OPTIMIZER_PREFIX)]
    if unknown := next((each for each in states if f"{MODEL_PREFIX}{each.rpartition('/')[0]}" not in shapes), None):
        raise MarkerError(f"its optimizer has a state of no tensor: {escape_text(unknown)}")
    for file in marker.files:
        for name, (start, size) in file.slices.items():
            if not shapes.get(name) == len(start) == len(size):
                raise MarkerError(f"{file.name} has a slice that fits no tensor: {escape_text(name)}")


def _locate_inside(part: Box, whole: Box) -> tuple[slice, ...]:
    """The place of a box within another one that contains it."""
    starts, sizes = part
    return tuple(slice(at - low, at - low + size) for at, low, size in zip(starts, whole[0], sizes, strict=True))


def _intersect_boxes(one: Box, other: Box) -> Box:
    """The overlap of two boxes; its size is zero if they don't overlap."""
    start = tuple(max(a, b) for a, b in zip(one[0], other[0], strict=True))
    ends = [min(a + n, b + m) for a, n, b, m in zip(one[0], one[1], other[0], other[1], strict=True)]
    return start, tuple(max(0, end - at) for end, at in zip(ends, start, strict=True))
