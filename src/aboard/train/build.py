"""From a model's directory to an engine: built on meta, spread over the ranks, then filled."""

import hashlib
import inspect
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from aboard.core.training import Training
from aboard.diagnoses import AboardError, model, training
from aboard.train.build_meta import layers, on_meta
from aboard.train.engine import Engine, switch
from aboard.train.load import from_files
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


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def flops_per_token(model: PreTrainedModel, length: int) -> float:
    """Forward and backward: six per weight that a token meets, and attention over half of the positions before it.

    Looking up an embedding is no multiplication, but a head that is tied to it is one (https://arxiv.org/abs/2204.02311,
    appendix B, which counts attention as if it were not causal).
    """
    return 6.0 * _met(model) + sum(
        6.0 * _width(model) * min(length, window) for window in _windows(model.config.get_text_config(), length)
    )


def _met(model: PreTrainedModel) -> float:
    config = model.config.get_text_config()
    experts = next((getattr(config, name) for name in EXPERTS if getattr(config, name, None)), None)
    share = getattr(config, "num_experts_per_tok", None)
    part = share / experts if experts and share else 1.0
    lookup = {id(each) for each in model.get_input_embeddings().parameters()}
    head = model.get_output_embeddings()
    multiplied = {id(each) for each in head.parameters()} if head is not None else set()
    return sum(
        each.numel() * (part if ".experts." in name else 1.0)
        for name, each in model.named_parameters()
        if id(each) not in lookup - multiplied
    )


def _width(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    heads = int(getattr(config, "num_attention_heads", 0))
    size = getattr(config, "head_dim", None) or int(config.hidden_size) // max(heads, 1)
    return heads * int(size)


def _windows(config: object, length: int) -> list[int]:
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) or length
    if kinds:
        return [window if kind == "sliding_attention" else length for kind in kinds]
    return [window] * int(getattr(config, "num_hidden_layers", 0))


# Of each file: how many places are looked at, and how much at each. It is a look, not a proof, and takes no time.
PLACES = 16
BLOCK = 4096
DIGEST = 16


def same(folder: Path, world: World) -> None:
    """Refuses ranks whose files differ from those of most others, by name."""
    if not world.distributed:
        return
    mine = torch.frombuffer(bytearray(_look(folder)), dtype=torch.uint8).to(world.device)
    all_of = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(all_of, mine)
    looks = [bytes(each.tolist()) for each in all_of]
    usual = Counter(looks).most_common(1)[0][0]
    others = [str(rank) for rank, look in enumerate(looks) if look != usual]
    if others:
        raise AboardError(
            model.DIFFERS,
            f"{folder} isn't the same everywhere: rank {', '.join(others)} has other files than most",
            folder=folder,
        )


def _look(folder: Path) -> bytes:
    found = hashlib.sha256()
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        size = path.stat().st_size
        found.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for place in range(PLACES):
                found.update(os.pread(file.fileno(), BLOCK, size * place // PLACES))
    return found.digest()[:DIGEST]
