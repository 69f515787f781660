"""Builds the engine of a run from a model directory: prepare on meta, shard over the ranks, load the weights."""

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from aboard.core.plan.training_settings import Training
from aboard.core.text.input_text import agree
from aboard.diagnoses import TrainerError
from aboard.trainer.adapter.sample_dropout import find_dropout_keys
from aboard.trainer.diagnoses import model_loading, training
from aboard.trainer.distributed.rank_context import RankContext
from aboard.trainer.memory.activations import ROUTED
from aboard.trainer.model.chunked_loss import enable_chunked_loss
from aboard.trainer.model.compile_layers import compile_layers, require_compiler
from aboard.trainer.model.engine import Engine, make_sync_switch
from aboard.trainer.model.meta_model import DTYPES, build_on_meta, find_layers, find_untied_ends
from aboard.trainer.weights.load_weights import FillModel, prepare_pretrained
from aboard.trainer.weights.model_files import hash_file_samples
from aboard.trainer.weights.scratch_weights import prepare_scratch

# Fills a model on meta once it has memory, and returns the bytes that this rank read.
LoadModel = Callable[[RankContext], int]


def build_engine(training: Training, context: RankContext, *, fixed_length: bool = False) -> Engine:
    """Prepares the model on meta, shards it, loads its weights and wraps it for the layout of this run.

    With `fixed_length`, layers are compiled for one length of rows.
    """
    if training.torch_compile:
        require_compiler(context.device)
    module, load, notes = _prepare_model(training, context)
    flops = count_flops_per_token(module, training.max_length)
    if context.mesh is not None:
        _shard_layers(module, training, context)
    _allocate_tensors(module, context.device, offload=training.cpu_offload)
    bytes_read = load(context)
    module.train()
    if training.torch_compile:
        selective = training.gradient_checkpointing == "selective"
        compile_layers(module, fixed_length=fixed_length, keep=_make_selective_contexts if selective else None)
    if training.chunked_loss:
        enable_chunked_loss(module)
    model = _wrap_model(module, training, context)
    return Engine(
        model=model,
        module=module,
        world=context,
        parameters=tuple(each for each in module.parameters() if each.requires_grad),
        loss_factor=float(context.size) if isinstance(model, DistributedDataParallel) else 1.0,
        flops_per_token=flops,
        bytes_read=bytes_read,
        notes=(_describe_sharding(context, offload=training.cpu_offload), *notes),
        dropout_keys=find_dropout_keys(module),
        chunked_loss=training.chunked_loss,
        _switch=make_sync_switch(model, context),
    )


def _prepare_model(training: Training, context: RankContext) -> tuple[PreTrainedModel, LoadModel, tuple[str, ...]]:
    """Builds the model on meta, matches it with its weight files or with an initialization, and modifies it."""
    module = build_on_meta(training, context.device)
    notes: tuple[str, ...] = ()
    if training.from_scratch:
        load: LoadModel = prepare_scratch(module, seed=training.seed)
    else:
        check_same_files(Path(training.model), context)
        fill, notes = prepare_pretrained(module, Path(training.model))
        load = partial(_load_pretrained, module, training, fill)
    modify_model(module, training)
    if training.adapter is not None:
        from aboard.trainer.adapter.inject_adapter import describe_adapter  # noqa: PLC0415 - as below

        notes = (*notes, *describe_adapter(module))
    return module, load, notes


def _load_pretrained(module: PreTrainedModel, training: Training, fill: FillModel, context: RankContext) -> int:
    if training.adapter is None:
        return fill(context, {})
    # Imported here: PEFT takes seconds, which only runs with an adapter need.
    from aboard.trainer.adapter.adapter_weights import fill_adapter, load_adapter  # noqa: PLC0415
    from aboard.trainer.adapter.inject_adapter import map_base_names  # noqa: PLC0415

    bytes_read = fill(context, map_base_names(module))
    if training.adapter.path is not None:
        return bytes_read + load_adapter(module, context, Path(training.adapter.path))
    fill_adapter(module, context, seed=training.seed)
    return bytes_read


def modify_model(model: PreTrainedModel, training: Training) -> None:
    """Changes the meta model before it is sharded: adapters, frozen weights and tensor-parallel plans belong here."""
    if training.adapter is not None:
        from aboard.trainer.adapter.inject_adapter import inject_adapter  # noqa: PLC0415 - as above

        inject_adapter(model, training, training.adapter)
    selective = training.gradient_checkpointing == "selective"
    # Selective checkpointing of compiled layers is compiled with them.
    if training.gradient_checkpointing and not (selective and training.torch_compile):
        _enable_checkpointing(model, selective=selective)


def _describe_sharding(context: RankContext, *, offload: bool) -> str:
    """The chosen layout, for the log."""
    if context.sharding == "none":
        return "the model is replicated on every rank" if context.distributed else "one rank has the whole model"
    where = "across all ranks" if context.sharding == "full" else "within each node"
    keep_note = "; gathered weights are kept for the backward pass" if context.keep else ""
    hold_note = "; gradients are reduced once per step" if context.hold else ""
    offload_note = "; they are in host memory" if offload else ""
    return f"weights, gradients and optimizer states are sharded {where}{offload_note}{keep_note}{hold_note}"


# What selective checkpointing keeps: outputs of linear layers and of fused attention, which cost most to recompute.
_KEPT_OPERATORS = {
    *("aten::mm", "aten::addmm", "aten::_grouped_mm", "bitsandbytes::gemm_4bit", "flash_attn_3::fwd"),
    "torch_attn::_varlen_attn",
    *("flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_varlen_forward"),
    *(f"aten::_scaled_dot_product_{kind}_attention" for kind in ("cudnn", "efficient", "flash")),
    "aten::_scaled_dot_product_flash_attention_for_cpu",
}


def _choose_kept(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:  # noqa: ARG001 - torch's signature
    return CheckpointPolicy.MUST_SAVE if operator.name() in _KEPT_OPERATORS else CheckpointPolicy.PREFER_RECOMPUTE


_make_selective_contexts = partial(create_selective_checkpoint_contexts, _choose_kept)


def _enable_checkpointing(model: PreTrainedModel, *, selective: bool) -> None:
    if not model.supports_gradient_checkpointing:
        raise TrainerError(
            training.CHECKPOINTING_UNKNOWN, f"a {type(model).__name__} doesn't support gradient checkpointing"
        )
    contexts = {"context_fn": _make_selective_contexts} if selective else {}
    model.gradient_checkpointing_enable({"use_reentrant": False, **contexts})


def _shard_layers(model: PreTrainedModel, training: Training, context: RankContext) -> None:
    policy = MixedPrecisionPolicy(
        param_dtype=None if training.precision == "float32" else DTYPES[training.precision],
        reduce_dtype=DTYPES[training.reduce_dtype],
    )
    # With offloading, shards of weights, gradients and optimizer states are in host memory, in float32 (16 bytes per
    # weight of a rank's shard, pinned). The device has gathered weights in the compute type, unreduced gradients and
    # activations, as without it. The optimizer steps on the CPU.
    offload: OffloadPolicy = OffloadPolicy()
    if training.cpu_offload:
        offload = CPUOffloadPolicy(pin_memory=context.device.type == "cuda")

    def wrap(module: nn.Module, *, reshard: bool | None = None) -> FSDPModule:
        return fully_shard(
            module, mesh=context.mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=reshard
        )

    layers = [wrap(layer, reshard=not context.keep) for layer in find_layers(model)]
    # FSDP itself gathers one layer ahead.
    for place, layer in enumerate(layers if training.prefetch_layers > 1 else ()):
        # Listed from the last one to the first.
        layer.set_modules_to_forward_prefetch(layers[max(0, place - training.prefetch_layers) : place][::-1])
        layer.set_modules_to_backward_prefetch(layers[place + 1 : place + 1 + training.prefetch_layers])
    if ends := find_untied_ends(model):
        embedding, head = ends
        # The gradient of a lookup needs no weights; that of an adapter does.
        wrap(embedding, reshard=not context.keep).set_unshard_in_backward(not isinstance(embedding, nn.Embedding))
        # The backward pass begins with the head.
        wrap(head, reshard=False)
    whole = wrap(model)
    if training.chunked_loss and layers:
        # What the head does otherwise: its own backward is part of the forward.
        whole.set_modules_to_backward_prefetch(layers[:1])
    for each in model.modules():
        if isinstance(each, FSDPModule):
            # Gradients are summed: the loss is already divided by the tokens of all ranks. The sum is forced, since
            # gloo has no other reduction with a factor.
            each.set_gradient_divide_factor(1.0)
            each.set_force_sum_reduction_for_comms(True)


def _allocate_tensors(model: PreTrainedModel, device: torch.device, *, offload: bool) -> None:
    """Allocates every tensor on the device, or only buffers. Real buffers keep values, tied parameters stay tied."""
    tied = _find_tied_parameters(model)
    buffers = {name: buffer for name, buffer in model.named_buffers() if not buffer.is_meta}
    model.to_empty(device="cpu" if offload else device)
    if offload:
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = torch.empty_like(buffer, device=device)  # noqa: SLF001 - register_buffer() would make it persistent
    for name, buffer in model.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])
    for (first, name), *others in tied:
        for module, other in others:
            setattr(module, other, getattr(first, name))


def _find_tied_parameters(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    places_by_id: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places_by_id[id(parameter)].append((module, name))
    return [places for places in places_by_id.values() if len(places) > 1]


def _wrap_model(module: PreTrainedModel, training: Training, context: RankContext) -> nn.Module:
    if context.mesh is not None:
        return module
    if training.precision != "float32":
        module.forward = torch.autocast(context.device.type, DTYPES[training.precision])(module.forward)
    if not context.distributed:
        return module
    return DistributedDataParallel(
        module,
        device_ids=[context.device.index] if context.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        # Every rank has loaded the same weights.
        init_sync=False,
        **_disable_buffer_sync(),
    )


def _disable_buffer_sync() -> dict[str, Any]:
    """Buffers are and stay equal on all ranks; torch 2.13 renamed the option."""
    names = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}


def count_flops_per_token(model: PreTrainedModel, length: int) -> float:
    """Forward and backward: six per weight that a token uses, and attention over half of the positions before it.

    A frozen weight has no gradient of its own, so it counts four.
    An embedding lookup is not a multiplication, but a head tied to it is one (https://arxiv.org/abs/2204.02311,
    appendix B, which counts attention as if it were not causal).
    """
    return _count_weight_flops(model) + sum(
        6.0 * _read_attention_width(model) * min(length, window)
        for window in _list_windows(model.config.get_text_config(), length)
    )


def _count_weight_flops(model: PreTrainedModel) -> float:
    config = model.config.get_text_config()
    experts = next((getattr(config, name) for name in ROUTED if getattr(config, name, None)), None)
    share = getattr(config, "num_experts_per_tok", None)
    part = share / experts if experts and share else 1.0
    lookup = {id(each) for each in model.get_input_embeddings().parameters()}
    head = model.get_output_embeddings()
    multiplied = {id(each) for each in head.parameters()} if head is not None else set()
    return sum(
        (6.0 if each.requires_grad else 4.0) * each.numel() * (part if ".experts." in name else 1.0)
        for name, each in model.named_parameters()
        # PEFT keeps the original of a module that is trained in full.
        if id(each) not in lookup - multiplied and ".original_module." not in name
    )


def _read_attention_width(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    heads = int(getattr(config, "num_attention_heads", 0))
    size = getattr(config, "head_dim", None) or int(config.hidden_size) // max(heads, 1)
    return heads * int(size)


def _list_windows(config: object, length: int) -> list[int]:
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) or length
    if kinds:
        return [window if kind == "sliding_attention" else length for kind in kinds]
    return [window] * int(getattr(config, "num_hidden_layers", 0))


def check_same_files(folder: Path, context: RankContext) -> None:
    """Raises if the model files of some ranks differ from those of most, and names these ranks."""
    if not context.distributed:
        return
    files = sorted([*folder.glob("*.json"), *folder.glob("*.safetensors"), *folder.glob("*.bin")])
    mine = torch.frombuffer(bytearray(hash_file_samples(files)), dtype=torch.uint8).to(context.device)
    all_of = [torch.empty_like(mine) for _ in range(context.size)]
    dist.all_gather(all_of, mine)
    digests = [bytes(each.tolist()) for each in all_of]
    usual = Counter(digests).most_common(1)[0][0]
    others = [str(rank) for rank, digest in enumerate(digests) if digest != usual]
    if others:
        raise TrainerError(
            model_loading.DIFFERS,
            f"{folder} is not the same on all ranks: rank{'s' * (len(others) > 1)} {', '.join(others)}"
            f" {agree(others, 'has', 'have')} different files than most ranks",
            folder=folder,
        )
