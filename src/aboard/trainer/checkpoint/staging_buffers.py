"""Host buffers that the state is copied into, so that training continues while it is written; reused by every save."""

import mmap
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint.commit_marker import Box
from aboard.trainer.checkpoint.tensor_slices import TensorSlice
from aboard.trainer.weights.safetensors_writer import encode_header

# A file is hashed by one thread: several files allow several threads, for writing and for reading.
FILE_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class StagedFile:
    """One file to write: header, then body; unchanged until it is written."""

    name: str
    header: bytes
    body: memoryview
    slices: dict[str, Box]


class StagingBuffers:
    """Allocated at the first save and reused while the layout is the same."""

    def __init__(self, *, rank: int, file_bytes: int = FILE_BYTES) -> None:
        self._rank = rank
        self._file_bytes = file_bytes
        self._buffers: list[Tensor] = []

    def ready(self, slices: Sequence[TensorSlice]) -> Callable[[], list[StagedFile]]:
        """Returns the function that copies the slices, from any thread; they must not change until it is done."""
        cuda = next((each.local.device for each in slices if each.local.is_cuda), None)
        # Everything that the device must still compute for these values was queued before this.
        behind = None if cuda is None else torch.cuda.current_stream(cuda).record_event()

        def copy() -> list[StagedFile]:
            if cuda is None or behind is None:
                return self._copy(slices, pinned=False)
            stream = torch.cuda.Stream(cuda)
            with torch.cuda.stream(stream):
                stream.wait_event(behind)
                drafts = self._copy(slices, pinned=True)
            stream.synchronize()
            return drafts

        return copy

    def _copy(self, slices: Sequence[TensorSlice], *, pinned: bool) -> list[StagedFile]:
        files = list(_group_by_file(slices, self._file_bytes))
        self._fit([sum(each.bytes for each in file) for file in files], pinned=pinned)
        return [self._draft(number, file) for number, file in enumerate(files)]

    def _fit(self, sizes: list[int], *, pinned: bool) -> None:
        if [buffer.numel() for buffer in self._buffers] != sizes:
            self._buffers = []  # free the old ones first: there may be no room for both
            self._buffers = [_allocate_buffer(size, pinned=pinned) for size in sizes]

    def _draft(self, number: int, file: Sequence[TensorSlice]) -> StagedFile:
        buffer = self._buffers[number]
        header: dict[str, object] = {}
        at = 0
        for each in file:
            end = at + each.bytes
            target = buffer[at:end].view(each.local.dtype).view(each.local.shape)
            target.copy_(each.local, non_blocking=True)
            header[each.name] = {"dtype": each.whole.dtype, "shape": each.box[1], "data_offsets": [at, end]}
            at = end
        return StagedFile(
            name=f"rank-{self._rank:05d}-{number:03d}.safetensors",
            header=encode_header(header),
            body=buffer.numpy().data,
            slices={each.name: each.box for each in file},
        )


def _group_by_file(slices: Sequence[TensorSlice], limit: int) -> Iterable[list[TensorSlice]]:
    """Wide elements first, so that each is aligned to its own size."""
    file: list[TensorSlice] = []
    size = 0
    for each in sorted(slices, key=lambda piece: -piece.local.element_size()):
        if file and size + each.bytes > limit:
            yield file
            file, size = [], 0
        file.append(each)
        size += each.bytes
    if file:
        yield file


def _allocate_buffer(size: int, *, pinned: bool) -> Tensor:
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    memory = mmap.mmap(-1, size)
    # Huge pages: the first copy is then as fast as later ones, with 1/500 of the page faults.
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
