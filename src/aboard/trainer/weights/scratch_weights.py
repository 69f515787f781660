"""Initializes a model from scratch: with its own distributions, and equal for any number of ranks and any layout.

Each tensor is drawn whole from its own seed, derived from the run's seed and its name; a rank keeps its part.
The model's own initialization is recorded on meta, where it costs nothing, then replayed on one tensor at a time.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from aboard.diagnoses import TrainerError
from aboard.lazy_dataclass import dataclass
from aboard.trainer.diagnoses import model_loading as models
from aboard.trainer.distributed.rank_context import RankContext
from aboard.trainer.weights.load_weights import allocate_buffers, list_local_shards
from aboard.trainer.weights.weight_names import get_tied_names


@dataclass(frozen=True, kw_only=True)
class InitOperation:
    """One in-place operation on a parameter, or on a view of it."""

    operator: Any
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def apply(self, whole: torch.Tensor, generator: torch.Generator) -> None:
        view = whole.as_strided(self.size, self.stride, self.offset)
        accepts_generator = any(argument.name == "generator" for argument in self.operator._schema.arguments)  # noqa: SLF001 - an operator's schema has no other name
        self.operator(view, *self.args, **{**self.kwargs, **({"generator": generator} if accepts_generator else {})})


def prepare_scratch(model: PreTrainedModel, *, seed: int) -> Callable[[RankContext], int]:
    """Records the initialization of a model on meta; the result fills it once it is sharded and allocated."""
    allocate_buffers(model)
    operations = record_operations(model)

    def into(context: RankContext) -> int:
        fill_from_scratch(model, operations, context, seed=seed)
        return 0

    return into


def record_operations(model: PreTrainedModel) -> dict[str, list[InitOperation]]:
    """The initialization of each tensor on meta, as recorded operations; real tensors are initialized directly."""
    names = {_identify_storage(tensor): name for name, tensor in reversed(list(model.state_dict().items()))}
    recorder = _Recorder(names)
    with recorder:
        model.initialize_weights()
    return recorder.operations


def fill_from_scratch(
    model: PreTrainedModel, operations: Mapping[str, list[InitOperation]], context: RankContext, *, seed: int
) -> None:
    """Draws every tensor, and keeps this rank's part of it."""
    left_out = [
        name
        for name in list_local_shards(model, context)
        if name not in operations and get_tied_names(model).get(name) not in operations
    ]
    if left_out:
        raise TrainerError(
            models.NO_START, f"a {type(model).__name__} doesn't initialize these weights: {', '.join(left_out[:5])}"
        )
    for name, part in list_local_shards(model, context).items():
        if name in operations:
            part.fill([part.of(draw_tensor(part.shape, operations[name], seed=seed, name=name))])


def draw_tensor(shape: tuple[int, ...], operations: list[InitOperation], *, seed: int, name: str) -> torch.Tensor:
    """Draws one whole tensor, the same on every rank."""
    generator = seed_generator(seed, name)
    value = torch.empty(shape, dtype=torch.float32)
    for operation in operations:
        operation.apply(value, generator)
    return value


def seed_generator(seed: int, name: str) -> torch.Generator:
    """The random numbers of one tensor, by its name: they depend on no other tensor, rank or layout."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


class _Recorder(TorchDispatchMode):
    """Records in-place operations on meta tensors, by the name that their storage has in the model."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: dict[str, list[InitOperation]] = defaultdict(list)
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = func._schema.arguments[:1]  # noqa: SLF001 - an operator's schema has no other name
        if not (written and written[0].alias_info and written[0].alias_info.is_write and args[0].is_meta):
            return func(*args, **kwargs)
        target = args[0]
        name = self._names.get(_identify_storage(target))
        if any(isinstance(each, torch.Tensor) and each.is_meta for each in (*args[1:], *kwargs.values())):
            raise TrainerError(
                models.NO_START,
                f"the initialization of {name or 'a tensor'} depends on other tensors, which is not supported",
            )
        if name:
            self.operations[name].append(
                InitOperation(
                    operator=func,
                    size=target.size(),
                    stride=target.stride(),
                    offset=target.storage_offset(),
                    args=args[1:],
                    kwargs={key: value for key, value in kwargs.items() if key != "generator"},
                )
            )
        return target


def _identify_storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - two views of one storage on meta share only this
