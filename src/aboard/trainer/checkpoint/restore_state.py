"""Restores a model and its optimizer from a checkpoint of any layout, each rank its own part."""

import torch
from torch import Tensor, nn

from aboard.diagnoses import TrainerError
from aboard.trainer.checkpoint.checkpoint_parts import OPTIMIZER_PREFIX
from aboard.trainer.checkpoint.commit_marker import CheckpointFile, TensorSpec
from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint, SliceReader
from aboard.trainer.checkpoint.tensor_slices import TensorSlice, collect_tensors, slice_model, slice_tensor
from aboard.trainer.diagnoses import checkpoint
from aboard.trainer.optimizer.sharded_optimizer import ShardedOptimizer


def find_files(
    saved: SavedCheckpoint, module: nn.Module, optimizer: ShardedOptimizer, world: int
) -> tuple[list[str], list[CheckpointFile]]:
    """The files with what this rank needs, and those that are not on its disk; raises if they are of another model."""
    named = collect_tensors(module)
    own = slice_model(named, world)
    _check_model({each.name: each.whole for each in own}, saved)
    for of in _list_optimized(saved):
        own += _slice_state(of, optimizer.allocate_state(named.tensors[of]), world)
    files: dict[str, None] = {}
    missing: dict[str, CheckpointFile] = {}
    for part in own:
        for _, holders in saved.cover(part.name, part.box):
            here = next((file for file in holders if file.name in saved.here), None)
            if here:
                files[here.name] = None
            else:
                missing[holders[0].name] = holders[0]
    return list(files), list(missing.values())


@torch.no_grad()
def restore_state(saved: SavedCheckpoint, module: nn.Module, optimizer: ShardedOptimizer, world: int) -> None:
    """Restores in place; the optimizer's state is allocated anew, by parameter name."""
    named = collect_tensors(module)
    optimizer.state.clear()
    own = slice_model(named, world)
    for of in _list_optimized(saved):
        parameter = named.tensors[of]
        optimizer.state[parameter] = optimizer.allocate_state(parameter)
        own += _slice_state(of, optimizer.state[parameter], world)
    with SliceReader(saved) as reader:
        for each in own:
            reader.fill(each.local, each.name, each.box)


def _list_optimized(saved: SavedCheckpoint) -> list[str]:
    """The parameters with a state: those without a gradient have none."""
    names = [name.removeprefix(OPTIMIZER_PREFIX) for name in saved.marker.tensors if name.startswith(OPTIMIZER_PREFIX)]
    return list(dict.fromkeys(name.rpartition("/")[0] for name in names))


def _slice_state(of: str, state: dict[str, Tensor], world: int) -> list[TensorSlice]:
    return [slice_tensor(f"{OPTIMIZER_PREFIX}{of}/{key}", value, world) for key, value in state.items()]


def _check_model(own: dict[str, TensorSpec], saved: SavedCheckpoint) -> None:
    theirs = {name: whole for name, whole in saved.marker.tensors.items() if not name.startswith(OPTIMIZER_PREFIX)}
    differing = [name for name in {**own, **theirs} if own.get(name) != theirs.get(name)]
    if differing:
        name = differing[0]
        there, here = _format_spec(theirs.get(name)), _format_spec(own.get(name))
        seen = f"{saved.folder} belongs to a different model: {name} is {there} in the checkpoint, {here} in this model"
        others = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise TrainerError(checkpoint.DIFFERS, seen + others, "model", model=str(saved.marker.training.get("model")))


def _format_spec(whole: TensorSpec | None) -> str:
    return "absent" if whole is None else f"{whole.dtype} {list(whole.shape)}"
