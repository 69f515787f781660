"""Filling a model and its optimizer from a checkpoint, each rank its own part, whatever layout it was saved in."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from aboard.diagnoses import AboardError, checkpoint
from aboard.lazy import dataclass
from aboard.train.checkpoint_slices import held, model_state, names
from aboard.train.marker import Box, Part, Whole
from aboard.train.saved import TORCH, Reader, Saved

_OPTIMIZER = "optimizer/"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One part of one tensor that this rank needs."""

    name: str
    box: Box


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The files that have what this rank needs, and those that would have it but aren't on its disk."""

    files: tuple[str, ...]
    missing: tuple[Part, ...]


def wanted(saved: Saved, module: nn.Module, world: int) -> list[Wanted]:
    """What this rank needs of it; an error if it is of another model."""
    own = {each.name: each for each in model_state(names(module), world)}
    tensors = saved.marker.tensors
    _compare({name: each.whole for name, each in own.items()}, saved)
    found = [Wanted(name=name, box=each.box) for name, each in own.items()]
    for name, whole in tensors.items():
        if name.startswith(_OPTIMIZER):
            of, key = _split(name)
            parameter = own[f"model/{of}"]
            box = parameter.box if _alike(key, whole, parameter.whole.shape) else ((0,) * len(whole.shape), whole.shape)
            found.append(Wanted(name=name, box=box))
    return found


def sources(saved: Saved, parts: Sequence[Wanted]) -> Sources:
    files: dict[str, None] = {}
    missing: dict[str, Part] = {}
    for part in parts:
        for _, holders in saved.cover(part.name, part.box):
            here = next((file for file in holders if file.name in saved.here), None)
            if here:
                files[here.name] = None
            else:
                missing[holders[0].name] = holders[0]
    return Sources(files=tuple(files), missing=tuple(missing.values()))


@torch.no_grad()
def load(saved: Saved, module: nn.Module, optimizer: torch.optim.Optimizer, world: int) -> None:
    """In place; the optimizer's state is made new, by the names of the parameters."""
    named = names(module)
    groups = {id(one): group for group in optimizer.param_groups for one in group["params"]}
    optimizer.state.clear()
    with Reader(saved) as reader:
        for each in model_state(named, world):
            reader.fill(each.local, each.name, each.box)
        for name, whole in saved.marker.tensors.items():
            if name.startswith(_OPTIMIZER):
                of, key = _split(name)
                parameter = named.tensors[of]
                state = _empty(key, whole, parameter, groups[id(parameter)])
                found = held(name, state, world)
                reader.fill(found.local, name, found.box)
                optimizer.state[parameter][key] = state


def _empty(key: str, whole: Whole, parameter: Tensor, group: dict[str, object]) -> Tensor:
    """As the optimizer would have made it: spread as its parameter is, or a lone number where it keeps those."""
    if _alike(key, whole, tuple(parameter.shape)):
        return torch.empty_like(parameter, dtype=TORCH[whole.dtype], requires_grad=False)
    # torch.optim counts steps on the device only where its kernel reads them there.
    there = group.get("fused") or group.get("capturable")
    return torch.empty(whole.shape, dtype=TORCH[whole.dtype], device=parameter.device if there else "cpu")


def _alike(key: str, whole: Whole, parameter: tuple[int, ...]) -> bool:
    """`step` is a number of its own, also for a parameter that is one number: torch.optim tells it by this name too."""
    return key != "step" and whole.shape == parameter


def _split(name: str) -> tuple[str, str]:
    parameter, _, key = name.removeprefix(_OPTIMIZER).rpartition("/")
    return parameter, key


def _compare(own: dict[str, Whole], saved: Saved) -> None:
    theirs = {name: whole for name, whole in saved.marker.tensors.items() if not name.startswith(_OPTIMIZER)}
    differing = [name for name in {**own, **theirs} if own.get(name) != theirs.get(name)]
    if differing:
        name = differing[0]
        there, here = _said(theirs.get(name)), _said(own.get(name))
        seen = f"{saved.folder} is of another model: {name} is {there} there, {here} here"
        others = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise AboardError(checkpoint.DIFFERS, seen + others, "model", model=str(saved.marker.training.get("model")))


def _said(whole: Whole | None) -> str:
    return "absent" if whole is None else f"{whole.dtype} {list(whole.shape)}"
