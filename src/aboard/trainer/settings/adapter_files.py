"""Reads the settings of an adapter that PEFT saved."""

import json
from pathlib import Path
from typing import Any

from aboard.core.decoding import parse_json
from aboard.diagnoses import TrainerError
from aboard.diagnoses.untrusted import escape_text
from aboard.foreign_files import MOST_JSON, ForeignFileError, read_foreign_file
from aboard.trainer.diagnoses import adapter

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
# PEFT's names and ours.
_READ = {
    **{name: name for name in ("r", "target_modules", "modules_to_save", "use_rslora", "use_dora")},
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
}
# These don't change what the adapter computes.
_IGNORED = {
    *("peft_type", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode"),
    *("peft_version", "fan_in_fan_out", "megatron_core", "qalora_group_size", "ensure_weight_tying", "runtime_config"),
}
# The values of a plain LoRA; all others are False, None or empty.
_USUAL: dict[str, tuple[object, ...]] = {
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "orthogonal"),
}


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """The settings of an adapter, by the names of `Adapter`; raises if it is more than LoRA, rsLoRA or DoRA."""
    if not (folder / WEIGHTS).is_file():
        raise TrainerError(adapter.FILES, f"{folder} has no {WEIGHTS}")
    try:
        content = parse_json(read_foreign_file(folder / CONFIG, MOST_JSON, in_model=True))
        kind = content["peft_type"]
        found = {ours: content[theirs] for theirs, ours in _READ.items() if content.get(theirs) is not None}
    except ForeignFileError as error:
        raise TrainerError(adapter.FILES, f"{folder / CONFIG} can't be read: {error.strerror}") from None
    except OSError as error:
        raise TrainerError(adapter.FILES, f"{folder} has no {CONFIG} ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TrainerError(adapter.FILES, f"{folder / CONFIG} is not the configuration of an adapter") from error
    if kind != "LORA":
        raise TrainerError(adapter.FILES, f"{folder} has an adapter of type {escape_text(str(kind), 100)}, not LORA")
    for name, value in content.items():
        if name not in _READ and name not in _IGNORED and value not in _USUAL.get(name, (None, False, [], {})):
            shown = f"{escape_text(name, 100)}: {escape_text(json.dumps(value), 100)}"
            raise TrainerError(adapter.FILES, f"{folder / CONFIG} has {shown}, which is not supported")
    # PEFT saves names as a set: in any order.
    found = {name: tuple(sorted(value, key=str)) if isinstance(value, list) else value for name, value in found.items()}
    _check_types(folder, found)
    return found | {"alpha": float(found["alpha"]), "dropout": float(found.get("dropout", 0))}


def _check_types(folder: Path, found: dict[str, Any]) -> None:
    numbers = all(isinstance(found.get(name, 0), int | float) for name in ("r", "alpha", "dropout"))
    numbers = numbers and "r" in found and "alpha" in found
    names = found.get("target_modules")
    if not numbers or not isinstance(names, str | tuple) or not all(isinstance(each, str) for each in names):
        raise TrainerError(adapter.FILES, f"{folder / CONFIG} lacks r, lora_alpha or target_modules")
