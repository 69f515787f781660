"""Injects PEFT's adapter layers into a model on meta, and freezes the rest."""

import re
from collections.abc import Iterator

import peft.tuners.lora.torchao
import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from torch import nn
from transformers import PreTrainedModel

from aboard.core.plan.training_settings import Adapter, Training
from aboard.core.text.input_text import agree, format_count
from aboard.diagnoses import TrainerError
from aboard.diagnoses.untrusted import escape_text
from aboard.trainer.adapter.sample_dropout import DropoutKeys, SampleDropout
from aboard.trainer.data.tokens.render_limits import RenderLimitError, RenderLimits
from aboard.trainer.diagnoses import adapter as failures
from aboard.trainer.model.meta_model import DTYPES

# PEFT's name of the adapter that it trains.
ADAPTER_NAME = "default"
ALL_LINEAR = "all-linear"

# PEFT asks whether a weight is one of torchao's, and refuses old versions of it. Ours never are.
setattr(peft.tuners.lora.torchao, "is_torchao_available", lambda: False)  # noqa: B010 - a name that it imports


def inject_adapter(model: PreTrainedModel, training: Training, adapter: Adapter) -> None:
    """Adds adapter layers in place; the model keeps its class. Frozen matrices get the type of the base model."""
    _check_names(model, adapter)
    if adapter.load_in_4bit:
        # Imported here: only these runs need bitsandbytes.
        from aboard.trainer.adapter.quantize_base import quantize_layers  # noqa: PLC0415

        quantize_layers(model, training, adapter)
        # PEFT asks for it to choose its layers.
        setattr(model, "is_loaded_in_4bit", True)  # noqa: B010 - a name that modules don't have
    try:
        inject_adapter_in_model(build_lora_config(adapter), model, adapter_name=ADAPTER_NAME, low_cpu_mem_usage=True)
    except ValueError as error:
        seen = f"PEFT can't add an adapter to this {type(model).__name__}: {escape_text(str(error), 400)}"
        raise TrainerError(failures.TARGETS, seen, names=_list_linear_names(model)) from error
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


def describe_adapter(model: PreTrainedModel) -> Iterator[str]:
    """Notes for the log: what is trained, and which weights an adapter can't reach."""
    layers = sum(isinstance(each, LoraLayer) for _, each in list_adapter_layers(model))
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    total = sum(each.numel() for each in model.parameters())
    yield (
        f"adapter: {format_count(layers, 'module')}, {trained:,} trained parameters ({trained / total:.2%} of all);"
        " the base model is frozen"
    )
    fused = [name for name, each in model.named_parameters() if each.ndim > 2 and not each.requires_grad]  # noqa: PLR2004
    if fused:
        yield (
            f"{format_count(len(fused), 'expert tensor')} such as {fused[0]} {agree(fused, 'is', 'are')} frozen and"
            " without an adapter: experts are fused into one tensor, and adapters belong to linear modules"
        )


def _check_names(model: PreTrainedModel, adapter: Adapter) -> None:
    """Every name that the user gave must match a module, and none a tied weight."""
    modules = dict(model.named_modules())
    targets: list[str] = []
    if isinstance(adapter.target_modules, tuple):
        targets = _find_matches(model, "target_modules", adapter.target_modules)
    elif adapter.target_modules != ALL_LINEAR:
        try:
            form = re.compile(adapter.target_modules)
            with RenderLimits() as limits:
                # The pattern may be of somebody else's adapter, and take for ever.
                targets = limits.run(lambda: [name for name in modules if form.fullmatch(name)])
        except RenderLimitError as error:
            seen = f"adapter.target_modules: to match {escape_text(adapter.target_modules, 200)} takes {error}"
            raise TrainerError(failures.TARGETS, seen, names=_list_linear_names(model)) from None
        except re.error as error:
            seen = f"adapter.target_modules is not a valid regular expression: {error}"
            raise TrainerError(failures.TARGETS, seen, names=_list_linear_names(model)) from None
        if not targets:
            seen = f"adapter.target_modules: no module's full name matches {escape_text(adapter.target_modules, 200)}"
            raise TrainerError(failures.TARGETS, seen, names=_list_linear_names(model))
    saved = _find_matches(model, "modules_to_save", adapter.modules_to_save)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is embedding.weight:
        tied = [name for name in (*targets, *saved) if modules[name] in (head, embedding)]
        if tied:
            raise TrainerError(
                failures.TIED,
                f"{tied[0]} shares its weights with the {'embedding' if modules[tied[0]] is head else 'output layer'}"
                f" ({type(model).__name__} ties them)",
            )


def _find_matches(model: nn.Module, key: str, names: tuple[str, ...]) -> list[str]:
    """Modules whose full name is one of these, or ends with it, as PEFT matches them."""
    modules = [name for name, _ in model.named_modules()]
    found = {given: [name for name in modules if name == given or name.endswith(f".{given}")] for given in names}
    missing = [escape_text(given, 100) for given, matches in found.items() if not matches]
    if missing:
        seen = f"adapter.{key}: the model has no module {', '.join(missing)}"
        raise TrainerError(failures.TARGETS, seen, names=_list_linear_names(model))
    return [name for matches in found.values() for name in matches]


def _list_linear_names(model: nn.Module) -> str:
    names = dict.fromkeys(
        name.rpartition(".")[2] for name, each in model.named_modules() if isinstance(each, nn.Linear)
    )
    return ", ".join(names)


def _draw_dropout_per_sample(model: PreTrainedModel, rate: float, seed: int) -> None:
    keys, head = DropoutKeys(), model.get_output_embeddings()
    for name, layer in list_adapter_layers(model):
        # LoRA of an embedding has no dropout.
        if isinstance(layer, LoraLayer) and ADAPTER_NAME in layer.lora_A and layer.in_features:
            layer.lora_dropout[ADAPTER_NAME] = SampleDropout(
                rate, layer.in_features, seed=seed, name=name, keys=keys, head=layer is head
            )


def _cast_frozen_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """On meta, before sharding. Norms and biases stay in float32: they are small."""
    cast: dict[int, nn.Parameter] = {}
    for module in model.modules():
        if hasattr(module, "quantize"):
            continue
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.requires_grad and parameter.ndim > 1 and parameter.dtype != dtype:
                same = cast.setdefault(id(parameter), nn.Parameter(parameter.to(dtype), requires_grad=False))
                setattr(module, name, same)
