"""A model on meta: shapes without weights."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from aboard.core.plan.training_settings import Precision, Training
from aboard.diagnoses import AboardError, TrainerError
from aboard.diagnoses.untrusted import escape_text
from aboard.trainer.data.intake.model_code import find_code_error
from aboard.trainer.diagnoses import checkpoint as checkpoints, model_loading as models

DTYPES: Mapping[Precision, torch.dtype] = MappingProxyType(
    {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
)
# Far above any model: with more, somebody means to keep us busy.
_MOST_MODULES = 10_000
# The CUDA compute capability that flash attention needs, also in fp16: Ampere.
FLASH_SINCE = (8, 0)


def build_on_meta(training: Training, device: torch.device) -> PreTrainedModel:
    """The model without weights: shapes only, in fp32, the type that weights are kept in."""
    config = _load_config(training)
    config.use_cache = False
    kernel = getattr(config, "_attn_implementation", None)
    if training.attn_implementation == "auto" and "/" in str(kernel) and not training.trust_remote_code:
        raise TrainerError(
            models.CODE,
            f"{training.model} needs the code of the attention kernel {escape_text(str(kernel))}, and running it was"
            " not allowed",
            file=str(kernel),
        )
    return build_with_attention(training, config, list_attentions(training, device))


def build_with_attention(
    training: Training, config: PreTrainedConfig, implementations: Sequence[str | None]
) -> PreTrainedModel:
    """With the first implementation that this model and this installation support; None is the model's own choice."""
    for place, implementation in enumerate(implementations, start=1):
        try:
            with torch.device("meta"):
                model: PreTrainedModel = AutoModelForCausalLM.from_config(
                    deepcopy(config),
                    dtype=torch.float32,
                    trust_remote_code=training.trust_remote_code,
                    **({"attn_implementation": implementation} if implementation else {}),
                )
        except (ImportError, ValueError) as error:
            if place < len(implementations):
                continue
            raise _find_code_error(training, error) or TrainerError(
                models.NOT_BUILT,
                f"the model {training.model} can't be built: {escape_text(str(error).splitlines()[0], 300)}",
            ) from error
        break
    return model


def require_same_shapes(
    folder: Path | str, stored: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises if the tensors of a checkpoint are not those of the model in this directory."""
    other = sorted(name for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name))
    if other:
        seen = f"{folder} does not match this checkpoint; these tensors differ: {', '.join(other[:3])}"
        raise AboardError(checkpoints.EXPORT_MODEL, seen)


def find_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The repeated blocks, inner ones first."""
    names = set(model._no_split_modules or ())  # noqa: SLF001 - transformers' contract with its models
    children = [child for each in model.modules() if isinstance(each, nn.ModuleList) for child in each]
    return [
        each
        for each in reversed(children)
        if isinstance(each, GradientCheckpointingLayer) or type(each).__name__ in names
    ]


def find_untied_ends(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """The embedding and the head, if each has weights of its own; they are gathered apart from the rest."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or not set(embedding.parameters()).isdisjoint(head.parameters()):
        return ()
    return embedding, head


def _load_config(training: Training) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            training.model, trust_remote_code=training.trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise _find_code_error(training, error) or TrainerError(
            models.MISSING,
            f"{training.model} has no config.json for a supported model:"
            f" {escape_text(str(error).splitlines()[0], 300)}",
            folder=training.model,
        ) from error
    count = max(_list_module_counts(config.to_dict()), default=0)
    if count > _MOST_MODULES:
        raise TrainerError(models.NOT_BUILT, f"the config.json of {training.model} has {count} layers or experts")
    if getattr(config, "quantization_config", None) is not None and not training.from_scratch:
        raise TrainerError(
            models.QUANTIZED, f"{training.model} is quantized, and full training of a quantized model is not supported"
        )
    return config


def _list_module_counts(settings: Mapping[str, Any]) -> Iterator[int]:
    """How often a model repeats parts of itself; each part takes time and memory, even without weights."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _list_module_counts(value)
        elif isinstance(value, int) and str(key).endswith(("layer", "layers", "experts", "blocks")):
            yield value


def _find_code_error(training: Training, error: Exception) -> AboardError | None:
    """The error that names the code, if transformers refused to run it."""
    return find_code_error(Path(training.model)) if "trust_remote_code" in str(error) else None


def list_attentions(training: Training, device: torch.device) -> tuple[str | None, ...]:
    """The user's choice; for `auto`, flash-attn if it works here, and then the model's own choice, which is None."""
    if training.attn_implementation != "auto":
        return (training.attn_implementation,)
    usable = device.type == "cuda" and training.precision != "float32"
    if usable and torch.cuda.get_device_capability(device) >= FLASH_SINCE and can_import("flash_attn"):
        return ("flash_attention_2", None)
    return (None,)


def can_import(package: str) -> bool:
    """An extension that was built for a different torch is installed, and fails with undefined symbols."""
    try:
        import_module(package)
    except Exception:  # noqa: BLE001 - whatever a broken build raises
        return False
    return True
