"""Counts device syncs, operations that make the host wait for the device, with their callers."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Each reads a value back: `.item()` and whatever ends in it, and what has a size that only the device knows.
_WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.item.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
}


class Waits(TorchDispatchMode):
    """While it is entered, in this thread; `found` has the functions around each wait, innermost last."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[list[str]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _WAITING:
            frames = traceback.extract_stack()[:-1]
            self.found.append([f"{frame.filename}:{frame.name}" for frame in frames])
        return func(*args, **(kwargs or {}))
