"""Measures the memory of a training: counts every live tensor at every operation that creates one."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Smaller ones are many, but negligible together.
SMALL = 4096


class LiveByteCounter(TorchDispatchMode):
    """`peak` is the most bytes held at once by tensors created within it; the same on any device.

    Counts storages instead of asking an allocator, so that it works on a CPU too and leaves out a backend's own
    buffers, which gloo has and nccl doesn't.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        new = False
        for each in tree_leaves(result):
            # A DTensor's own storage pretends to be the whole tensor.
            tensor = each.to_local() if isinstance(each, DTensor) else each
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta and tensor.nbytes >= SMALL:
                new |= self._add(tensor)
        if new:
            self.peak = max(self.peak, self.now())
        return result

    def now(self) -> int:
        """The bytes that are live now."""
        total = 0
        for key, reference in list(self._live.items()):
            # A storage may have been resized to zero since: so FSDP frees what it gathered.
            storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self._live[key]
            else:
                total += storage.nbytes()
        return total

    def _add(self, tensor: torch.Tensor) -> bool:
        reference = StorageWeakRef(tensor.untyped_storage())
        known = self._live.get(reference.cdata)
        if known is not None and not known.expired():
            return False
        self._live[reference.cdata] = reference
        return True
