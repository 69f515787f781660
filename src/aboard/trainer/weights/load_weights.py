"""Loads weights into a sharded, empty model: each rank reads only its own part of every tensor."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from aboard.diagnoses import TrainerError
from aboard.lazy_dataclass import dataclass
from aboard.trainer.diagnoses import model_loading
from aboard.trainer.distributed.rank_context import RankContext
from aboard.trainer.weights.weight_files import StoredTensor, open_weights, read_whole
from aboard.trainer.weights.weight_names import FusedWeights, WeightMatch, get_tied_names, match_weights

# Reading is bound by disks more than by cores; more than a few threads don't help (transformers uses four, too).
THREADS = 4


@dataclass(frozen=True, kw_only=True)
class LocalShard:
    """This rank's part of one tensor: `local` has its rows from `start` on."""

    local: torch.Tensor
    start: int
    shape: tuple[int, ...]

    @torch.no_grad()
    def fill(self, pieces: Iterable[torch.Tensor]) -> int:
        """Writes the rows of this part, cast to its own type; returns the bytes read."""
        rows = self.local if self.local.dim() else self.local.view(1)
        at = size = 0
        for piece in pieces:
            rows[at : at + len(piece)].copy_(piece)
            at, size = at + len(piece), size + piece.nbytes
        return size

    def read(self, stored: StoredTensor) -> int:
        """Fills this part from a file; returns the bytes read."""
        return self.fill(stored.rows(self.start, self.stop)) if self.local.numel() else 0

    @property
    def stop(self) -> int:
        return self.start + (len(self.local) if self.local.dim() else 1)

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """The rows of this part from a whole tensor."""
        return (value if value.dim() else value.view(1))[self.start : self.stop]


@dataclass(frozen=True, kw_only=True)
class QuantizedWeight(LocalShard):
    """A weight that is quantized as soon as it is read, so that there is never a full-precision copy of all."""

    quantize: Callable[[torch.Tensor], None]

    def fill(self, pieces: Iterable[torch.Tensor]) -> int:
        whole = torch.cat(list(pieces))
        self.quantize(whole)
        return whole.nbytes

    @property
    def stop(self) -> int:
        return self.shape[0]


# Called with the rank's context and the tensors that were renamed meanwhile; returns the bytes that this rank read.
FillModel = Callable[[RankContext, Mapping[str, str]], int]


def prepare_pretrained(model: PreTrainedModel, folder: Path) -> tuple[FillModel, tuple[str, ...]]:
    """Matches a model on meta with its files; returns what fills it once it is sharded and allocated, and notes."""
    files = open_weights(folder)
    matches = match_weights(model, files)
    notes = [*untie_differing(model, matches, files)]
    if matches.mixed:
        notes.append(
            f"{len(matches.mixed)} tensors are each assembled from several in the files; every rank reads those whole"
        )
    for tensor in model.state_dict(keep_vars=True).values():
        # So that transformers initializes only what no file has.
        tensor._is_hf_initialized = True  # noqa: SLF001 - transformers' own mark
    allocate_buffers(model)
    model.initialize_weights()
    return lambda world, moved: fill_from_files(model, matches, files, world, moved), tuple(notes)


def allocate_buffers(model: PreTrainedModel) -> None:
    """Buffers that no file has, such as rotary tables, are computed on the CPU, as in an ordinary load."""
    for name, buffer in list(model.named_non_persistent_buffers()):
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, torch.empty_like(buffer, device="cpu"))


def list_local_shards(model: torch.nn.Module, context: RankContext) -> dict[str, LocalShard]:
    """Every parameter and persistent buffer by name, tied ones by each of their names."""
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    shards = {name: _make_shard(tensors[name], context) for name in model.state_dict()}
    return shards | {
        f"{name}.weight": _make_quantized(module, context.device)
        for name, module in model.named_modules()
        if hasattr(module, "quantize")
    }


def fill_from_files(
    model: PreTrainedModel,
    matches: WeightMatch,
    files: Mapping[str, StoredTensor],
    context: RankContext,
    moved: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Fills the model from the files; returns the bytes that this rank read. `moved`: new name → name when matched."""
    shards = {moved.get(name, name): shard for name, shard in list_local_shards(model, context).items()}
    _check_shapes(matches.plain, files, shards)
    twice = {
        name for name, source in get_tied_names(model).items() if name in matches.plain and source in matches.plain
    }
    jobs: list[Callable[[], int]] = [
        partial(shards[name].read, files[source]) for name, source in matches.plain.items() if name not in twice
    ]
    jobs += [partial(_fill_fused, mixture, files, shards, model) for mixture in matches.mixed]
    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(lambda job: job(), jobs))


def _make_shard(tensor: torch.Tensor, context: RankContext) -> LocalShard:
    if not isinstance(tensor, DTensor) or context.mesh is None:
        return LocalShard(local=tensor.detach(), start=0, shape=tuple(tensor.shape))
    local = tensor.to_local().detach()
    shards = context.mesh["shard"]
    # As torch.chunk splits: all parts equal except the last ones, which may be smaller or empty.
    chunk = -(-tensor.shape[0] // shards.size())
    start = min(chunk * shards.get_local_rank(), tensor.shape[0])
    return LocalShard(local=local, start=start, shape=tuple(tensor.shape))


def _make_quantized(layer: Any, device: torch.device) -> QuantizedWeight:
    return QuantizedWeight(
        local=layer.weight.detach(),
        start=0,
        shape=(layer.out_features, layer.in_features),
        quantize=partial(layer.quantize, device=device),
    )


def _check_shapes(
    plain: Mapping[str, str], files: Mapping[str, StoredTensor], shards: Mapping[str, LocalShard]
) -> None:
    wrong = [
        f"{name} is {list(files[source].shape)} in the files and {list(shards[name].shape)} according to config.json"
        for name, source in plain.items()
        if files[source].shape != shards[name].shape
    ]
    if wrong:
        raise TrainerError(
            model_loading.SHAPES,
            f"{len(wrong)} tensors have a different shape than in the model: {'; '.join(wrong[:3])}",
        )


def _fill_fused(
    mixture: FusedWeights, files: Mapping[str, StoredTensor], shards: Mapping[str, LocalShard], model: PreTrainedModel
) -> int:
    """Every rank computes the whole fused tensor, one layer at a time, and keeps its part."""
    tensors = mixture.convert(lambda source: read_whole(files[source]), model)
    for name, value in tensors.items():
        shards[name].fill([shards[name].of(value)])
    return sum(prod(files[source].shape) * files[source].dtype.itemsize for source, _ in mixture.sources)


def untie_differing(model: PreTrainedModel, matches: WeightMatch, files: Mapping[str, StoredTensor]) -> Iterator[str]:
    """Unties, on meta, tensors that have different values in the files, as transformers does; yields notes."""
    for name, source in list(get_tied_names(model).items()):
        both = name in matches.plain and source in matches.plain
        if both and not _is_equal(files[matches.plain[name]], files[matches.plain[source]]):
            parent, _, own = name.rpartition(".")
            module = model.get_submodule(parent)
            setattr(module, own, torch.nn.Parameter(torch.empty_like(getattr(module, own))))
            del get_tied_names(model)[name]
            model.config.tie_word_embeddings = False
            yield f"{name} and {source} differ in the files, so they are not tied, regardless of config.json"


def _is_equal(one: StoredTensor, other: StoredTensor) -> bool:
    if one.shape != other.shape:
        return False
    rows = one.shape[0]
    return all(map(torch.equal, one.rows(0, rows), other.rows(0, rows)))
