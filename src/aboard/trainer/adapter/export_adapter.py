"""Exports what an adapter run trained: as PEFT saves an adapter, or merged into the base model, layer by layer."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from torch import Tensor
from transformers import PreTrainedModel

from aboard.core.plan.training_settings import Adapter, Training
from aboard.diagnoses import AboardError
from aboard.trainer.adapter.inject_adapter import ADAPTER_NAME, inject_adapter, list_adapter_layers, map_base_names
from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint
from aboard.trainer.diagnoses import checkpoint as checkpoints
from aboard.trainer.model.meta_model import build_on_meta, require_same_shapes
from aboard.trainer.weights.load_weights import untie_differing
from aboard.trainer.weights.model_files import identify_weights
from aboard.trainer.weights.safetensors_writer import LazyTensor
from aboard.trainer.weights.weight_files import open_weights, read_whole
from aboard.trainer.weights.weight_names import get_tied_names, list_targets, match_weights

# The prefix that PeftModel adds to the names of the model that it wraps.
PEFT_PREFIX = "base_model.model."


def build_adapted(saved: SavedCheckpoint, training: Training, adapter: Adapter) -> PreTrainedModel:
    """The model on meta with its adapter; raises if the base or the trained tensors are not the checkpoint's."""
    folder = Path(training.model)
    if saved.marker.base and identify_weights(folder) != saved.marker.base:
        raise AboardError(
            checkpoints.EXPORT_MODEL,
            f"the weights in {folder} have changed since: these adapters were trained on other base weights",
        )
    # The files have the base in full precision, whatever type it was trained in.
    whole = replace(adapter, base_dtype="float32", load_in_4bit=False, path=None)
    model = build_on_meta(training, torch.device("cpu"))
    inject_adapter(model, replace(training, adapter=whole), whole)
    expected = {
        name: tuple(each.shape) for name, each in model.state_dict(keep_vars=True).items() if each.requires_grad
    }
    stored = {name: saved.marker.tensors[f"model/{name}"].shape for name in saved.model()}
    require_same_shapes(folder, stored, expected)
    return model


def list_adapter_tensors(saved: SavedCheckpoint, model: PreTrainedModel, dtype: torch.dtype) -> dict[str, LazyTensor]:
    """The trained tensors by PEFT's names."""

    def read(name: str) -> Tensor:
        return saved.tensor(f"model/{name}").to(dtype)

    trained = {
        name: LazyTensor(shape=saved.marker.tensors[f"model/{name}"].shape, dtype=dtype, read=partial(read, name))
        for name in saved.model()
    }
    # The base has all embeddings: their size never changes.
    renamed = get_peft_model_state_dict(model, state_dict=trained, save_embedding_layers=False)
    return {f"{PEFT_PREFIX}{name}": tensor for name, tensor in renamed.items()}


def write_adapter_config(model: PreTrainedModel, adapter: Adapter, base: Path, out: Path) -> None:
    """adapter_config.json, as PEFT writes it for an adapter to use."""
    config = cast("LoraConfig", model.peft_config[ADAPTER_NAME])
    config.base_model_name_or_path, config.revision = find_hub_name(base)
    config.inference_mode = True
    if adapter.alpha.is_integer():
        config.lora_alpha = int(adapter.alpha)
    if not isinstance(config.target_modules, str):
        # PEFT has a set, whose order changes from run to run.
        config.target_modules = sorted(config.target_modules or ())
    config.save_pretrained(str(out))


def find_hub_name(folder: Path) -> tuple[str, str | None]:
    """The name and revision of a model in the Hub's cache, as models--ORG--NAME/snapshots/REVISION; else the path."""
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/"), folder.name
    return str(folder), None


class MergedModel:
    """The base model's tensors with the adapter merged in, computed in float32; one layer is in memory at a time."""

    def __init__(self, saved: SavedCheckpoint, adapted: PreTrainedModel, base: PreTrainedModel, folder: Path) -> None:
        self._saved = saved
        self._files = open_weights(folder)
        self._model = base
        expected = base.state_dict()
        self._matches = match_weights(base, self._files)
        list(untie_differing(base, self._matches, self._files))
        self._fused = {name: each for each in self._matches.mixed for name in list_targets(each, expected)}
        self._merged = dict(self._list_merged(adapted))
        skipped = {*get_tied_names(base), *self._matches.fresh}
        # By name, as the model's state_dict has them; tied ones once.
        self.shapes = {name: tuple(each.shape) for name, each in base.state_dict().items() if name not in skipped}
        self.dtypes = {name: self._read_dtype(name) for name in self.shapes}

    def read(self, name: str) -> Tensor:
        return self._merged[name]() if name in self._merged else self._read_base(name)

    def _list_merged(self, adapted: PreTrainedModel) -> Iterator[tuple[str, Callable[[], Tensor]]]:
        moved = map_base_names(adapted)
        for layer, module in list_adapter_layers(adapted):
            if isinstance(module, ModulesToSaveWrapper):
                for name in module.original_module.state_dict():
                    trained = f"model/{layer}.modules_to_save.{ADAPTER_NAME}.{name}"
                    yield f"{layer}.{name}", partial(self._saved.tensor, trained)
            elif isinstance(module, LoraLayer):
                yield f"{layer}.weight", partial(self._merge_layer, layer, module, moved)

    def _merge_layer(self, layer: str, module: LoraLayer, moved: Mapping[str, str]) -> Tensor:
        """By PEFT's own code, so that scaling, DoRA and transposed weights are as it has them."""
        # Any: a LoraLayer is a module only together with its other base class.
        filled: Any = deepcopy(module)
        names = {name: f"{layer}.{name}" for name in filled.state_dict()}
        tensors = {
            name: self._read_base(moved[full]).float() if full in moved else self._saved.tensor(f"model/{full}")
            for name, full in names.items()
        }
        filled.load_state_dict(tensors, assign=True)
        filled.merge()
        weight: Tensor = filled.get_base_layer().weight.detach()
        return weight

    def _read_base(self, name: str) -> Tensor:
        if name in self._fused:
            return self._fused[name].convert(lambda source: read_whole(self._files[source]), self._model)[name]
        return read_whole(self._files[self._find_source(name)])

    def _find_source(self, name: str) -> str:
        """The name in the files; a tied tensor may be there by its other name."""
        tied = get_tied_names(self._model)
        names = (name, *(other for other, source in tied.items() if source == name))
        return next(self._matches.plain[each] for each in names if each in self._matches.plain)

    def _read_dtype(self, name: str) -> torch.dtype:
        if name in self._merged or name in self._fused:
            return torch.float32
        return self._files[self._find_source(name)].dtype
