"""The model of a training: fetched once on the head, before ranks exist, and what its config says."""

import json
from pathlib import Path
from typing import Any

from aboard.checks.train.boarding import Model
from aboard.core.words import visible
from aboard.diagnoses import AboardError

CONFIG = "config.json"
# What transformers reads of a model; the same weights in other formats are left where they are.
FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
WEIGHTS = "*.safetensors"


def fetched(name: str, *, from_scratch: bool) -> Path:
    """The model's directory on this machine; a name of the hub is downloaded, or found in the hub's cache."""
    folder = Path(name)
    if not folder.is_dir():
        folder = _from_hub(name, weights=not from_scratch)
    if not (folder / CONFIG).is_file():
        seen = f"{folder} has no {CONFIG}: it is no model that transformers could load"
        raise AboardError("train-model", seen, fix=f"ls -l {folder}")
    if not from_scratch and not any(folder.glob(WEIGHTS)):
        others = sorted(path.name for path in folder.glob("*.bin"))
        beside = f", only {others[0]}" if others else ""
        seen = f"{folder} has no safetensors{beside}"
        fix = "train.from_scratch: true    # in aboard.yaml, to begin with new weights"
        if others:
            fix = (
                'python -c "from transformers import AutoModelForCausalLM as M;'
                f" M.from_pretrained('{folder}').save_pretrained('{folder}')\"    # writes safetensors"
            )
        raise AboardError("train-model", seen, fix=fix)
    return folder


def model_facts(folder: Path) -> Model:
    """From config.json; a model of several parts says it of its text part."""
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError) as error:
        seen = f"{folder / CONFIG} can't be read: {visible(str(error))}"
        raise AboardError("train-model", seen, fix=f"cat {folder / CONFIG}") from None
    config = {**config, **config.get("text_config", {})}
    return Model(vocabulary=_number(config, "vocab_size"), positions=_number(config, "max_position_embeddings"))


def _from_hub(name: str, *, weights: bool) -> Path:
    # Not at the top: only a name of the hub needs it.
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        return Path(snapshot_download(name, allow_patterns=[*FILES, *([WEIGHTS] if weights else [])]))
    except Exception as error:  # the hub raises whatever its client, its validators and its cache raise
        said = visible(" ".join(str(error).split()), 300)
        seen = f"there is no directory '{visible(name)}', and the hub doesn't give a model of that name: {said}"
        fix = f"hf download {visible(name)}    # where there is a network; or name a directory: train.model"
        raise AboardError("train-model", seen, fix=fix) from error


def _number(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else None
