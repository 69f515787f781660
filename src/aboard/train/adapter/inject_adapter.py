"""Injects PEFT's adapter layers into a model on meta, and freezes the rest."""

from collections.abc import Iterator

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from torch import nn
from transformers import PreTrainedModel

from aboard.core.plan.training_settings import Adapter, Training
from aboard.train.adapter.sample_dropout import DropoutKeys, SampleDropout

# PEFT's name of the adapter that it trains.
ADAPTER_NAME = "default"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def inject_adapter(model: PreTrainedModel, training: Training, adapter: Adapter) -> None:
    """Adds adapter layers in place; the model keeps its class. Frozen matrices get the type of the base model."""
    inject_adapter_in_model(build_lora_config(adapter), model, adapter_name=ADAPTER_NAME, low_cpu_mem_usage=True)
    _cast_frozen_weights(model, DTYPES[training.base_dtype])
    if adapter.dropout:
        _draw_dropout_per_sample(model, adapter.dropout, training.seed)


def build_lora_config(adapter: Adapter) -> LoraConfig:
    targets = adapter.target_modules
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.r,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]
        lora_dropout=adapter.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        modules_to_save=list(adapter.modules_to_save) or None,
        use_rslora=adapter.use_rslora,
        use_dora=adapter.use_dora,
    )


def list_adapter_layers(model: nn.Module) -> Iterator[tuple[str, BaseTunerLayer | ModulesToSaveWrapper]]:
    """The modules that PEFT replaced, by name."""
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer | ModulesToSaveWrapper):
            yield name, module


def map_base_names(model: nn.Module) -> dict[str, str]:
    """The tensors that injection renamed: the new name → the name in the base model."""
    names: dict[str, str] = {}
    for layer, module in list_adapter_layers(model):
        inner = "original_module" if isinstance(module, ModulesToSaveWrapper) else "base_layer"
        names |= {f"{layer}.{inner}.{name}": f"{layer}.{name}" for name in getattr(module, inner).state_dict()}
    return names


def _draw_dropout_per_sample(model: PreTrainedModel, rate: float, seed: int) -> None:
    keys, head = DropoutKeys(), model.get_output_embeddings()
    for name, layer in list_adapter_layers(model):
        # LoRA of an embedding has no dropout.
        if isinstance(layer, LoraLayer) and ADAPTER_NAME in layer.lora_A:
            size = layer.lora_A[ADAPTER_NAME].weight.shape[1]
            layer.lora_dropout[ADAPTER_NAME] = SampleDropout(
                rate, size, seed=seed, name=name, keys=keys, head=layer is head
            )


def _cast_frozen_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """On meta, before sharding. Norms and biases stay in float32: they are small."""
    cast: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.requires_grad and parameter.ndim > 1 and parameter.dtype != dtype:
                same = cast.setdefault(id(parameter), nn.Parameter(parameter.to(dtype), requires_grad=False))
                setattr(module, name, same)
