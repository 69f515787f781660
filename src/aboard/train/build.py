"""From a model's directory to an engine: built on meta, spread over the ranks, then filled."""

import inspect
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from aboard.core.training import Training
from aboard.diagnoses import AboardError, training
from aboard.train.build_meta import layers, on_meta
from aboard.train.engine import Engine, switch
from aboard.train.flops import flops_per_token
from aboard.train.load import from_files
from aboard.train.load_same import same
from aboard.train.load_scratch import from_scratch
from aboard.train.world import World


def build(training: Training, world: World) -> Engine:
    """The model of a training, spread as the world says, with the weights of its files or with new ones."""
    module = on_meta(training, world.device)
    notes: tuple[str, ...] = ()
    if training.from_scratch:
        into = from_scratch(module, seed=training.seed)
    else:
        same(Path(training.model), world)
        into, notes = from_files(module, Path(training.model))
    if training.gradient_checkpointing:
        _checkpoint(module)
    flops = flops_per_token(module, training.max_length)
    if world.mesh is not None:
        _shard(module, training, world)
    _materialise(module, world.device)
    read = into(world)
    module.train()
    model = _wrapped(module, training, world)
    return Engine(
        model=model,
        module=module,
        world=world,
        parameters=tuple(each for each in module.parameters() if each.requires_grad),
        loss_scale=float(world.size) if isinstance(model, DistributedDataParallel) else 1.0,
        flops_per_token=flops,
        bytes_read=read,
        notes=(_spread(world), *notes),
        _switch=switch(model, world),
    )


def _spread(world: World) -> str:
    """What was settled, in words."""
    if world.sharding == "none":
        return "every rank has the whole model" if world.distributed else "one rank has the whole model"
    where = "over all ranks" if world.sharding == "full" else "within each node"
    kept = "; there is room to keep gathered weights for the backward" if world.keep else ""
    held = "; there is room to reduce gradients once a step" if world.hold else ""
    return f"weights, gradients and optimizer are spread {where}{kept}{held}"


def _checkpoint(model: PreTrainedModel) -> None:
    if not model.supports_gradient_checkpointing:
        raise AboardError(training.CHECKPOINTING_UNKNOWN, f"a {type(model).__name__} can't recompute its activations")
    model.gradient_checkpointing_enable({"use_reentrant": False})


def _shard(model: PreTrainedModel, training: Training, world: World) -> None:
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = half if training.bf16 else MixedPrecisionPolicy()
    for layer in layers(model):
        fully_shard(layer, mesh=world.mesh, mp_policy=policy, reshard_after_forward=not world.keep)
    fully_shard(model, mesh=world.mesh, mp_policy=policy)
    for each in model.modules():
        if isinstance(each, FSDPModule):
            # Gradients are summed: the loss has been divided by the tokens of all ranks already. Told to sum, since
            # gloo has no other reduction with a factor.
            each.set_gradient_divide_factor(1.0)
            each.set_force_sum_reduction_for_comms(True)


def _materialise(model: PreTrainedModel, device: torch.device) -> None:
    """Room for every tensor on the device. Buffers that are real keep their values, and tied parameters stay one."""
    tied = _places(model)
    buffers = {name: buffer for name, buffer in model.named_buffers() if not buffer.is_meta}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])
    for (first, name), *others in tied:
        for module, other in others:
            setattr(module, other, getattr(first, name))


def _places(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    found: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            found[id(parameter)].append((module, name))
    return [places for places in found.values() if len(places) > 1]


def _wrapped(module: PreTrainedModel, training: Training, world: World) -> nn.Module:
    if world.mesh is not None:
        return module
    if training.bf16:
        module.forward = torch.autocast(world.device.type, torch.bfloat16)(module.forward)
    if not world.distributed:
        return module
    return DistributedDataParallel(
        module,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        # Every rank has read the same files.
        init_sync=False,
        **_no_buffer_sync(),
    )


def _no_buffer_sync() -> dict[str, Any]:
    """Buffers are the same everywhere, and stay so; torch 2.13 gave the switch another name."""
    names = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}
