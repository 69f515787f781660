"""QLoRA: the frozen linear layers in 4 bits, quantized one by one while they are loaded."""

from collections.abc import Callable
from typing import Any

import torch
from bitsandbytes.nn import Linear4bit, Params4bit
from torch import Tensor, nn
from transformers import PreTrainedModel

from aboard.core.plan.training_settings import Adapter, Training
from aboard.diagnoses import TrainerError
from aboard.trainer.diagnoses import adapter as failures
from aboard.trainer.model.meta_model import DTYPES, find_layers


class QuantizedLinear(Linear4bit):  # type: ignore[misc]
    """A frozen linear layer in NF4; its weight stays on meta until `quantize` gets the values."""

    def __init__(self, layer: nn.Linear, training: Training) -> None:
        super().__init__(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            compute_dtype=DTYPES[training.precision],
            quant_type="nf4",
            device="meta",
        )
        self.base_dtype = DTYPES[training.base_dtype]
        # An evaluation would repack the weight for the CPU, and training can't continue with that.
        self.support_avx512bf16_for_cpu = False

    def quantize(self, value: Tensor, device: torch.device) -> None:
        weight = Params4bit(
            value.to(self.base_dtype), requires_grad=False, compress_statistics=True, quant_type="nf4", module=self
        )
        self.weight = weight.to(device)

    def forward(self, x: Tensor) -> Tensor:
        """As a linear layer under autocast: the output has the type that is computed in."""
        output: Tensor = super().forward(x.to(self.compute_dtype))
        return output

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "QuantizedLinear":  # noqa: FBT001, FBT002 - torch's signature
        """Leaves the weight out: `to_empty` would allocate it in full precision."""
        weight, self._parameters["weight"] = self._parameters["weight"], None
        try:
            super()._apply(fn, recurse)
        finally:
            self._parameters["weight"] = weight
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: FBT001 - torch's signature
        """Without the quantization's state, which is no tensor of the model."""
        nn.Linear._save_to_state_dict(self, destination, prefix, keep_vars)  # noqa: SLF001 - what bitsandbytes extends


def quantize_layers(model: PreTrainedModel, training: Training, adapter: Adapter) -> None:
    """Replaces the linear modules of the layers, on meta; those that are trained in full stay as they are."""
    linear = {
        id(module)
        for layer in find_layers(model)
        for module in layer.modules()
        if type(module) is nn.Linear and module is not model.get_output_embeddings()
    }
    replaced = 0
    for name, module in list(model.named_modules()):
        saved = any(f".{each}." in f".{name}." for each in adapter.modules_to_save)
        if id(module) in linear and not saved:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, QuantizedLinear(module, training))
            replaced += 1
    if not replaced:
        seen = f"the layers of this {type(model).__name__} have no linear modules that could be quantized"
        raise TrainerError(failures.QUANTIZED, seen)
