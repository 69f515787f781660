"""`torch_compile`: compiles each decoder layer, and books the time of it."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from aboard.diagnoses import TrainerError
from aboard.trainer.diagnoses import training
from aboard.trainer.metrics.time_ledger import TimeKind, TimeLedger
from aboard.trainer.model.meta_model import find_layers


def require_compiler(device: torch.device) -> None:
    """Raises if torch.compile can't work on this node: better now than minutes later, in the first step."""
    variable, names = "CXX", ["g++"]  # as torch._inductor.config.cpp.cxx
    if device.type == "cuda":
        if find_spec("triton") is None:
            raise TrainerError(training.COMPILER, "torch_compile is true, but Triton is not installed", "triton")
        variable, names = "CC", ["gcc", "clang", "cc"]
    chosen = os.environ.get(variable)
    names = [chosen] if chosen else names
    if not any(map(shutil.which, names)):
        source = f" ({variable} is set to it)" if chosen else ""
        seen = f"torch_compile is true, but this node has no {' or '.join(names)}{source}"
        raise TrainerError(training.COMPILER, seen, "compiler")


def compile_layers(
    model: PreTrainedModel, *, fixed_length: bool = False, keep: Callable[[], Any] | None = None
) -> None:
    """Compiles the forward of each layer, called within the hooks of FSDP2 and within gradient checkpointing.

    Layers share their code, so it is compiled once. Lengths are symbolic, unless rows have a `fixed_length`: otherwise
    each length is compiled anew. `keep` makes the contexts of selective checkpointing, which is compiled with the
    layer: outside of it, the operations to choose from are those of the compiler, which write to buffers of its own.
    """
    # Imported here: it takes seconds, which only compiled runs need.
    import torch._dynamo  # noqa: PLC0415
    import torch.fx.experimental._config as shapes  # noqa: PLC0415

    # DDP reduces per layer anyway; splitting the graph of a layer at its buckets only adds graphs.
    torch._dynamo.config.optimize_ddp = False  # noqa: SLF001 - torch's public name of it
    # A first length that equals the hidden size would otherwise be taken for it, and stay fixed.
    shapes.use_duck_shape = False
    for layer in find_layers(model):
        forward: Callable[..., Any] = layer.forward
        if keep is not None:
            forward = partial(checkpoint, forward, use_reentrant=False, context_fn=keep)
        layer.forward = torch.compile(forward, dynamic=None if fixed_length else True)


@contextmanager
def time_compilations(ledger: TimeLedger) -> Iterator[None]:
    """Books compilations as their own class, and counts them: of layers, and of optimizers that compile themselves."""
    dynamo: Any = sys.modules.get("torch._dynamo.callback")
    if dynamo is None:
        yield
        return
    handler = dynamo.callback_handler
    before: list[TimeKind] = []

    def start(*_: Any) -> None:
        before.append(ledger.switch_to("compile"))

    def end(*args: Any) -> None:
        if before:
            ledger.switch_to(before.pop())
        # "4/1": the second compilation of the fifth function.
        _, _, attempt = str(getattr(args[0], "compile_id", "") if args else "").partition("/")
        ledger.compilations += 1
        ledger.recompilations += attempt.isdigit() and int(attempt) > 0

    handler.register_start_callback(start)
    handler.register_end_callback(end)
    try:
        yield
    finally:
        # torch._dynamo.reset() removes them, too.
        with suppress(ValueError):
            handler.remove_start_callback(start)
            handler.remove_end_callback(end)
