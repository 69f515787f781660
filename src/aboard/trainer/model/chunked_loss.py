"""The loss without all logits: the head and the loss are computed for a chunk of rows at a time, with their gradients.

Each chunk runs the model's own head under autograd, so that any head works. In the model's forward, a placeholder takes
the place of the logits; it records the elementwise operations that the model applies to them, for each chunk to repeat.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from aboard.diagnoses import AboardError, TrainerError
from aboard.trainer.adapter.sample_dropout import SampleDropout
from aboard.trainer.diagnoses import training
from aboard.trainer.model.loss import compute_loss_sum

# Logits of one chunk: so many that adding up the gradient of the head's weight costs little beside its matmul.
_ELEMENTS = {"cpu": 1 << 25}
_ELEMENTS_ELSEWHERE = 1 << 27
_PROBED_TOKENS = 16

Operation = Callable[[Tensor], Tensor]


def count_chunk_rows(vocabulary: int, device: str) -> int:
    """The positions whose logits, and their gradient, exist at the same time."""
    return max(1, _ELEMENTS.get(device, _ELEMENTS_ELSEWHERE) // vocabulary)


def enable_chunked_loss(model: PreTrainedModel) -> None:
    """Lets the model return the summed loss of its labels, if called with them.

    The loss is computed within the model's forward: there, the head's weight is gathered, in the type to compute in.
    """
    run, head = model.forward, _find_head(model)

    def forward(*, labels: Tensor | None = None, **inputs: Any) -> Any:
        if labels is None:
            return run(**inputs)
        logits = _run_deferred(model, head, run, **inputs)
        trained = [each for each in head.parameters() if each.requires_grad] if torch.is_grad_enabled() else []
        hidden = logits.hidden.reshape(-1, logits.hidden.shape[-1])
        rows = count_chunk_rows(logits.shape[-1], hidden.device.type)
        apply: Callable[..., Tensor] = _ChunkedLoss.apply
        return apply(partial(logits.compute, head), labels.reshape(-1), rows, hidden, *trained)

    model.forward = forward


def find_chunking_obstacle(model: PreTrainedModel) -> str | None:
    """Why the logits of a model on meta can't be computed in chunks; None if they can.

    Runs only what comes after the layers: masks need real tensors. None, too, if that isn't possible with this model:
    then its first step reports it.
    """
    # Some models name a base that they don't have, and are their own then.
    base = getattr(model, "model", model) if model.base_model is model else model.base_model
    if base is model:
        return None
    try:
        head = _find_head(model)
        hidden = torch.empty(1, _PROBED_TOKENS, cast("int", head.in_features), device="meta")
        base.forward = lambda *_, **__: _BaseOutput(hidden)
        with torch.no_grad():
            _run_deferred(model, head, model.forward, input_ids=torch.empty_like(hidden[..., 0], dtype=torch.int64))
    except AboardError as error:
        return error.seen
    except Exception:  # noqa: BLE001 - the model's own code
        return None
    finally:
        base.__dict__.pop("forward", None)
    return None


class _BaseOutput(tuple[Tensor, ...]):
    """What a model without its head returns: the hidden states, and nothing else."""

    __slots__ = ()

    def __new__(cls, hidden: Tensor) -> Self:
        return super().__new__(cls, (hidden,))

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


def _find_head(model: PreTrainedModel) -> nn.Module:
    head = cast("nn.Module | None", model.get_output_embeddings())
    if head is None or not hasattr(head, "out_features"):
        raise _build_refusal(model, "not computed by one linear layer")
    if any(isinstance(each, SampleDropout) or (isinstance(each, nn.Dropout) and each.p) for each in head.modules()):
        raise _build_refusal(model, "computed with dropout")
    return head


def _run_deferred(model: PreTrainedModel, head: nn.Module, run: Callable[..., Any], **inputs: Any) -> "_DeferredLogits":
    with _defer_head(model, head):
        logits = run(**inputs).logits
    if not isinstance(logits, _DeferredLogits):
        raise _build_refusal(model, "not computed by its output embeddings")
    return logits


@contextmanager
def _defer_head(model: PreTrainedModel, head: nn.Module) -> Iterator[None]:
    def forward(hidden: Tensor) -> _DeferredLogits:
        kind = hidden.device.type
        autocast = kind != "meta" and torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if autocast else hidden.dtype
        return _DeferredLogits(model, hidden, cast("int", head.out_features), dtype)

    head.forward = forward
    try:
        yield
    finally:
        del head.forward


class _DeferredLogits(Tensor):
    """Stands for logits that are not computed: the head's input, and the operations on its output."""

    model: PreTrainedModel
    hidden: Tensor
    operations: tuple[Operation, ...]

    @staticmethod
    def __new__(
        cls: type[Self],
        model: PreTrainedModel,
        hidden: Tensor,
        width: int,
        dtype: torch.dtype,
        operations: tuple[Operation, ...] = (),
    ) -> Self:
        shape = (*hidden.shape[:-1], width)
        made: Self = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=hidden.device)  # noqa: SLF001 - torch's own way to make one
        made.model, made.hidden, made.operations = model, hidden, operations
        return made

    def compute(self, head: nn.Module, rows: Tensor) -> Tensor:
        """The logits of these rows of hidden states."""
        # Without the hooks of FSDP, which gathered the weights for the placeholder: they would send gradients after
        # each chunk.
        logits: Tensor = head.forward(rows)
        for operation in self.operations:
            logits = operation(logits)
        return logits

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override] # a class method, as torch's documentation has it
        rest = kwargs or {}
        first, *others = args
        elementwise = torch.Tag.pointwise in func.tags or func is torch.ops.aten._to_copy.default  # noqa: SLF001 - Tensor.to
        tensors = any(isinstance(each, Tensor) for each in tree_leaves((others, rest)))
        if not isinstance(first, cls) or tensors or not elementwise or func._schema.is_mutable:  # noqa: SLF001 - an operator's schema has no other name
            deferred = next(each for each in tree_leaves((args, rest)) if isinstance(each, cls))
            raise _build_refusal(deferred.model, f"changed by {func}, which is not elementwise")
        result = func(torch.empty((), dtype=first.dtype, device="meta"), *others, **rest)
        operations = (*first.operations, lambda logits: func(logits, *others, **rest))
        return cls(first.model, first.hidden, first.shape[-1], result.dtype, operations)


def _build_refusal(model: PreTrainedModel, why: str) -> AboardError:
    seen = f"chunked_loss can't be used with a {type(model).__name__}: its logits are {why}"
    return TrainerError(training.CHUNKED_LOSS, seen)


class _ChunkedLoss(torch.autograd.Function):
    """The summed loss of hidden states; gradients of them and of the head's trained parameters come with it."""

    @staticmethod
    def forward(ctx: Any, compute: Operation, labels: Tensor, rows: int, hidden: Tensor, *trained: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        slope = torch.empty_like(hidden) if ctx.needs_input_grad[3] else None
        # Summed up in float32, since each chunk adds to it.
        sums: list[Tensor] = []
        for at in range(0, len(hidden), rows):
            part = slice(at, at + rows)
            with torch.set_grad_enabled(slope is not None or bool(trained)):
                chunk = hidden[part].detach().requires_grad_(slope is not None)
                loss = compute_loss_sum(compute(chunk), labels[part])
            total += loss.detach()
            if not loss.requires_grad:
                continue
            gradients = list(torch.autograd.grad(loss, (chunk, *trained) if slope is not None else trained))
            if slope is not None:
                slope[part] = gradients.pop(0)
            if sums:
                torch._foreach_add_(sums, gradients)
            else:
                sums = [each.float() for each in gradients]
        ctx.slope, ctx.sums, ctx.dtypes = slope, sums, [each.dtype for each in trained]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        slope, sums = ctx.slope, ctx.sums
        del ctx.slope, ctx.sums
        gradients = [each.mul_(weight).to(dtype) for each, dtype in zip(sums, ctx.dtypes, strict=True)]
        return (None, None, None, None if slope is None else slope.mul_(weight), *gradients)
