"""Into a model that is built and spread but empty: each rank reads its own part of every tensor, and no more."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from aboard.diagnoses import AboardError, model
from aboard.lazy import dataclass
from aboard.train.load_files import Stored, weights, whole
from aboard.train.load_names import Match, Mixture, match, tied
from aboard.train.world import World

# Reading waits for disks more than for cores; more than a few at once help nobody (transformers uses four, too).
THREADS = 4


@dataclass(frozen=True, kw_only=True)
class Part:
    """What this rank holds of one tensor: `local` is its rows from `start` on."""

    local: torch.Tensor
    start: int
    shape: tuple[int, ...]

    @torch.no_grad()
    def fill(self, pieces: Iterable[torch.Tensor]) -> int:
        """Writes the rows of this part, cast to its own type; how many bytes they were."""
        rows = self.local if self.local.dim() else self.local.view(1)
        at = size = 0
        for piece in pieces:
            rows[at : at + len(piece)].copy_(piece)
            at, size = at + len(piece), size + piece.nbytes
        return size

    @property
    def stop(self) -> int:
        return self.start + (len(self.local) if self.local.dim() else 1)

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """Its own rows of the whole tensor."""
        return (value if value.dim() else value.view(1))[self.start : self.stop]


def from_files(model: PreTrainedModel, folder: Path) -> tuple[Callable[[World], int], tuple[str, ...]]:
    """Of a model on meta: what fills it once that is spread and has room, and what there is to say about it.

    Called with the world, the first returns how many bytes this rank has read.
    """
    files = weights(folder)
    found = match(model, files)
    notes = [*untied(model, found, files)]
    if found.mixed:
        notes.append(f"{len(found.mixed)} tensors are put together from several: every rank reads those whole")
    for tensor in model.state_dict(keep_vars=True).values():
        # So that transformers initialises only what no file has.
        tensor._is_hf_initialized = True  # noqa: SLF001 - transformers' own mark
    real_buffers(model)
    model.initialize_weights()
    return lambda world: load(model, found, files, world), tuple(notes)


def real_buffers(model: PreTrainedModel) -> None:
    """Buffers that no file has, rotary tables for one, are made where an ordinary load makes them: on the CPU."""
    for name, buffer in list(model.named_non_persistent_buffers()):
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, torch.empty_like(buffer, device="cpu"))


def parts(model: torch.nn.Module, world: World) -> dict[str, Part]:
    """Every parameter and saved buffer by its name, a tied one by each of its names."""
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {name: _part(tensors[name], world) for name in model.state_dict()}


def load(model: PreTrainedModel, found: Match, files: Mapping[str, Stored], world: World) -> int:
    """Fills all of it from the files; returns how many bytes this rank has read."""
    its = parts(model, world)
    _same_shapes(found.plain, files, its)
    twice = {name for name, source in tied(model).items() if name in found.plain and source in found.plain}
    jobs: list[Callable[[], int]] = [
        partial(_plain, its[name], files[source]) for name, source in found.plain.items() if name not in twice
    ]
    jobs += [partial(_mixed, mixture, files, its, model) for mixture in found.mixed]
    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(lambda job: job(), jobs))


def _part(tensor: torch.Tensor, world: World) -> Part:
    if not isinstance(tensor, DTensor) or world.mesh is None:
        return Part(local=tensor.detach(), start=0, shape=tuple(tensor.shape))
    local = tensor.to_local().detach()
    shards = world.mesh["shard"]
    # As torch.chunk cuts: all parts alike but the last ones, which may be smaller or empty.
    chunk = -(-tensor.shape[0] // shards.size())
    start = min(chunk * shards.get_local_rank(), tensor.shape[0])
    return Part(local=local, start=start, shape=tuple(tensor.shape))


def _same_shapes(plain: Mapping[str, str], files: Mapping[str, Stored], its: Mapping[str, Part]) -> None:
    wrong = [
        f"{name} is {list(files[source].shape)} in the files and {list(its[name].shape)} by config.json"
        for name, source in plain.items()
        if files[source].shape != its[name].shape
    ]
    if wrong:
        raise AboardError(
            model.SHAPES, f"{len(wrong)} tensors have another shape than the model's: {'; '.join(wrong[:3])}"
        )


def _plain(part: Part, stored: Stored) -> int:
    return part.fill(stored.rows(part.start, part.stop)) if part.local.numel() else 0


def _mixed(mixture: Mixture, files: Mapping[str, Stored], its: Mapping[str, Part], model: PreTrainedModel) -> int:
    """Every rank makes the whole of what is fused, one layer at a time, and keeps its part."""
    made = mixture.convert(lambda source: whole(files[source]), model)
    for name, value in made.items():
        its[name].fill([its[name].of(value)])
    return sum(_size(files[source]) for source, _ in mixture.sources)


def _size(stored: Stored) -> int:
    return int(torch.Size(stored.shape).numel()) * stored.dtype.itemsize


def untied(model: PreTrainedModel, found: Match, files: Mapping[str, Stored]) -> Iterator[str]:
    """Unties, on meta, what the files have with different values, as transformers does; says so for each."""
    for name, source in list(tied(model).items()):
        both = name in found.plain and source in found.plain
        if both and not _equal(files[found.plain[name]], files[found.plain[source]]):
            parent, _, own = name.rpartition(".")
            module = model.get_submodule(parent)
            setattr(module, own, torch.nn.Parameter(torch.empty_like(getattr(module, own))))
            del tied(model)[name]
            model.config.tie_word_embeddings = False
            yield f"{name} and {source} differ in the files, so they aren't tied, whatever config.json says"


def _equal(one: Stored, other: Stored) -> bool:
    if one.shape != other.shape:
        return False
    rows = one.shape[0]
    return all(map(torch.equal, one.rows(0, rows), other.rows(0, rows)))
