"""Restores a model and its optimizer from a checkpoint of any layout, each rank its own part."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from aboard.diagnoses import AboardError
from aboard.diagnoses.trainer import checkpoint
from aboard.lazy_dataclass import dataclass
from aboard.train.checkpoint.commit_marker import Box, CheckpointFile, TensorSpec
from aboard.train.checkpoint.saved_checkpoint import TORCH_DTYPES, SavedCheckpoint, SliceReader
from aboard.train.checkpoint.tensor_slices import collect_tensors, slice_model, slice_tensor

_OPTIMIZER = "optimizer/"


@dataclass(frozen=True, kw_only=True)
class TensorRegion:
    """A region of a tensor that this rank needs."""

    name: str
    box: Box


@dataclass(frozen=True, kw_only=True)
class RestoreFiles:
    """The files with what this rank needs, and those that are not on its disk."""

    files: tuple[str, ...]
    missing: tuple[CheckpointFile, ...]


def list_regions(saved: SavedCheckpoint, module: nn.Module, world: int) -> list[TensorRegion]:
    """The regions that this rank needs; raises if the checkpoint is of another model."""
    own = {each.name: each for each in slice_model(collect_tensors(module), world)}
    tensors = saved.marker.tensors
    _check_model({name: each.whole for name, each in own.items()}, saved)
    regions = [TensorRegion(name=name, box=each.box) for name, each in own.items()]
    for name, whole in tensors.items():
        if name.startswith(_OPTIMIZER):
            of, key = _split_name(name)
            parameter = own[f"model/{of}"]
            box = (
                parameter.box
                if _is_like_parameter(key, whole, parameter.whole.shape)
                else ((0,) * len(whole.shape), whole.shape)
            )
            regions.append(TensorRegion(name=name, box=box))
    return regions


def find_files(saved: SavedCheckpoint, parts: Sequence[TensorRegion]) -> RestoreFiles:
    files: dict[str, None] = {}
    missing: dict[str, CheckpointFile] = {}
    for part in parts:
        for _, holders in saved.cover(part.name, part.box):
            here = next((file for file in holders if file.name in saved.here), None)
            if here:
                files[here.name] = None
            else:
                missing[holders[0].name] = holders[0]
    return RestoreFiles(files=tuple(files), missing=tuple(missing.values()))


@torch.no_grad()
def restore_state(saved: SavedCheckpoint, module: nn.Module, optimizer: torch.optim.Optimizer, world: int) -> None:
    """Restores in place; the optimizer's state is allocated anew, by parameter name."""
    named = collect_tensors(module)
    groups = {id(one): group for group in optimizer.param_groups for one in group["params"]}
    optimizer.state.clear()
    with SliceReader(saved) as reader:
        for each in slice_model(named, world):
            reader.fill(each.local, each.name, each.box)
        for name, whole in saved.marker.tensors.items():
            if name.startswith(_OPTIMIZER):
                of, key = _split_name(name)
                parameter = named.tensors[of]
                state = _allocate_state(key, whole, parameter, groups[id(parameter)])
                state_slice = slice_tensor(name, state, world)
                reader.fill(state_slice.local, name, state_slice.box)
                optimizer.state[parameter][key] = state


def _allocate_state(key: str, whole: TensorSpec, parameter: Tensor, group: dict[str, object]) -> Tensor:
    """Allocates as the optimizer would: sharded like its parameter, or a single number."""
    if _is_like_parameter(key, whole, tuple(parameter.shape)):
        return torch.empty_like(parameter, dtype=TORCH_DTYPES[whole.dtype], requires_grad=False)
    # torch.optim counts steps on the device only if its kernel reads them there.
    there = group.get("fused") or group.get("capturable")
    return torch.empty(whole.shape, dtype=TORCH_DTYPES[whole.dtype], device=parameter.device if there else "cpu")


def _is_like_parameter(key: str, whole: TensorSpec, parameter: tuple[int, ...]) -> bool:
    """`step` is a scalar of its own even for a scalar parameter; torch.optim identifies it by this name too."""
    return key != "step" and whole.shape == parameter


def _split_name(name: str) -> tuple[str, str]:
    parameter, _, key = name.removeprefix(_OPTIMIZER).rpartition("/")
    return parameter, key


def _check_model(own: dict[str, TensorSpec], saved: SavedCheckpoint) -> None:
    theirs = {name: whole for name, whole in saved.marker.tensors.items() if not name.startswith(_OPTIMIZER)}
    differing = [name for name in {**own, **theirs} if own.get(name) != theirs.get(name)]
    if differing:
        name = differing[0]
        there, here = _format_spec(theirs.get(name)), _format_spec(own.get(name))
        seen = f"{saved.folder} belongs to a different model: {name} is {there} in the checkpoint, {here} in this model"
        others = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise AboardError(checkpoint.DIFFERS, seen + others, "model", model=str(saved.marker.training.get("model")))


def _format_spec(whole: TensorSpec | None) -> str:
    return "absent" if whole is None else f"{whole.dtype} {list(whole.shape)}"
