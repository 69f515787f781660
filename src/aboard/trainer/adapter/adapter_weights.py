"""The first weights of an adapter: the same on any number of ranks, in any layout."""

from math import sqrt
from pathlib import Path

import torch
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from aboard.diagnoses import TrainerError
from aboard.diagnoses.untrusted import escape_text
from aboard.trainer.adapter.inject_adapter import ADAPTER_NAME, list_adapter_layers
from aboard.trainer.diagnoses import adapter as failures
from aboard.trainer.distributed.rank_context import RankContext
from aboard.trainer.weights.load_weights import LocalShard, list_local_shards
from aboard.trainer.weights.scratch_weights import seed_generator
from aboard.trainer.weights.weight_files import open_safetensors

WEIGHTS = "adapter_model.safetensors"


@torch.no_grad()
def fill_adapter(model: PreTrainedModel, context: RankContext, *, seed: int) -> None:
    """Fills a sharded adapter as PEFT does: A is random and B zero, so that the first step is the base model's."""
    shards = list_local_shards(model, context)
    for layer_name, layer in list_adapter_layers(model):
        if isinstance(layer, ModulesToSaveWrapper):
            for name in layer.original_module.state_dict():
                first = shards[f"{layer_name}.original_module.{name}"].local
                shards[f"{layer_name}.modules_to_save.{ADAPTER_NAME}.{name}"].local.copy_(first)
        if isinstance(layer, LoraLayer):
            _fill_layer(layer_name, layer, shards, seed)


def _fill_layer(layer_name: str, layer: LoraLayer, shards: dict[str, LocalShard], seed: int) -> None:
    if ADAPTER_NAME in layer.lora_embedding_A:
        # As PEFT does for embeddings: A is zero and B random.
        name, zero = f"{layer_name}.lora_embedding_B.{ADAPTER_NAME}", f"{layer_name}.lora_embedding_A.{ADAPTER_NAME}"
        whole = torch.empty(shards[name].shape).normal_(generator=seed_generator(seed, name))
    else:
        name, zero = f"{layer_name}.lora_A.{ADAPTER_NAME}.weight", f"{layer_name}.lora_B.{ADAPTER_NAME}.weight"
        whole = torch.empty(shards[name].shape)
        nn.init.kaiming_uniform_(whole, a=sqrt(5), generator=seed_generator(seed, name))
    shards[name].fill([shards[name].of(whole)])
    shards[zero].local.zero_()
    magnitude = shards.get(f"{layer_name}.lora_magnitude_vector.{ADAPTER_NAME}.weight")
    if magnitude is None:
        return
    base = layer.get_base_layer().weight
    if getattr(layer, "fan_in_fan_out", False):
        # Transposed: a rank's shard has some inputs of all outputs.
        full = base.full_tensor() if isinstance(base, DTensor) else base
        magnitude.fill([magnitude.of(torch.linalg.vector_norm(full.float(), dim=0))])
    else:
        # Sharded by rows, as the magnitudes are.
        rows = base.to_local() if isinstance(base, DTensor) else base
        magnitude.local.copy_(torch.linalg.vector_norm(rows.float(), dim=1))


def load_adapter(model: PreTrainedModel, context: RankContext, folder: Path) -> int:
    """Fills a sharded adapter from the file that PEFT saved; returns the bytes that this rank read."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    shards = {name_in_file(name): each for name, each in list_local_shards(model, context).items() if name in trained}
    stored = open_safetensors(folder / WEIGHTS)
    for names, where in ((shards.keys() - stored.keys(), "lack"), (stored.keys() - shards.keys(), "have")):
        if names:
            seen = f"the adapter's files {where} {len(names)} tensors that this model with the adapter's settings"
            seen += f" {'has' if where == 'lack' else 'lacks'}, such as {escape_text(min(names), 200)}"
            raise TrainerError(failures.FILES, f"{folder}: {seen}")
    wrong = [name for name, each in shards.items() if each.shape != stored[name].shape]
    if wrong:
        shapes = f"{list(stored[wrong[0]].shape)} instead of {list(shards[wrong[0]].shape)}"
        raise TrainerError(failures.FILES, f"{folder}: {wrong[0]} has the shape {shapes}")
    return sum(part.read(stored[name]) for name, part in shards.items())


def name_in_file(name: str) -> str:
    """A trained tensor's name in PEFT's files."""
    name = name.replace(f".lora_magnitude_vector.{ADAPTER_NAME}.weight", ".lora_magnitude_vector")
    return "base_model.model." + name.replace(f".modules_to_save.{ADAPTER_NAME}", "").replace(f".{ADAPTER_NAME}", "")
