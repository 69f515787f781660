"""The first weights of an adapter: the same on any number of ranks, in any layout."""

from math import sqrt

import torch
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from aboard.train.adapter.inject_adapter import ADAPTER_NAME, list_adapter_layers
from aboard.train.distributed.rank_context import RankContext
from aboard.train.model.load_weights import list_local_shards
from aboard.train.model.scratch_weights import seed_generator


@torch.no_grad()
def fill_adapter(model: PreTrainedModel, world: RankContext, *, seed: int) -> None:
    """Fills a sharded adapter as PEFT does: A is random and B zero, so that the first step is the base model's."""
    shards = list_local_shards(model, world)
    for layer_name, layer in list_adapter_layers(model):
        if isinstance(layer, ModulesToSaveWrapper):
            for name in layer.original_module.state_dict():
                first = shards[f"{layer_name}.original_module.{name}"].local
                shards[f"{layer_name}.modules_to_save.{ADAPTER_NAME}.{name}"].local.copy_(first)
        if not isinstance(layer, LoraLayer):
            continue
        name = f"{layer_name}.lora_A.{ADAPTER_NAME}.weight"
        whole = torch.empty(shards[name].shape)
        nn.init.kaiming_uniform_(whole, a=sqrt(5), generator=seed_generator(seed, name))
        shards[name].fill([shards[name].of(whole)])
        shards[f"{layer_name}.lora_B.{ADAPTER_NAME}.weight"].local.zero_()
        magnitude = shards.get(f"{layer_name}.lora_magnitude_vector.{ADAPTER_NAME}.weight")
        if magnitude is not None:
            base = layer.get_base_layer().weight
            # Sharded by rows, as the magnitudes are.
            rows = base.to_local() if isinstance(base, DTensor) else base
            magnitude.local.copy_(torch.linalg.vector_norm(rows.float(), dim=1))
