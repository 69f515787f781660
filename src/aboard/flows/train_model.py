"""The model of a training: fetched once on the head, before ranks exist, and what its config says."""

import json
from pathlib import Path
from typing import Any

from aboard.checks.train.boarding import Model
from aboard.core.words import visible
from aboard.diagnoses import AboardError, Shell, training

CONFIG = "config.json"
# What transformers reads of a model; the same weights in other formats are left where they are.
FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
WEIGHTS = "*.safetensors"
# In double quotes, by a shell or by the Python within them.
_READ_BY_SHELLS = "\"'\\$`!"


def fetched(name: str, *, from_scratch: bool) -> Path:
    """The model's directory on this machine; a name of the hub is downloaded, or found in the hub's cache."""
    folder = Path(name)
    if not folder.is_dir():
        folder = _from_hub(name, weights=not from_scratch)
    if not (folder / CONFIG).is_file():
        seen = f"{folder} has no {CONFIG}: it is no model that transformers could load"
        raise AboardError(training.MODEL, seen, "folder", folder=folder)
    if not from_scratch and not any(folder.glob(WEIGHTS)):
        others = sorted(path.name for path in folder.glob("*.bin"))
        beside = f", only {others[0]}" if others else ""
        seen = f"{folder} has no safetensors{beside}"
        if others:
            raise AboardError(training.MODEL, seen, "convert", code=_converting(folder))
        raise AboardError(training.MODEL, seen, "scratch")
    return folder


def model_facts(folder: Path) -> Model:
    """From config.json; a model of several parts says it of its text part."""
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError) as error:
        seen = f"{folder / CONFIG} can't be read: {visible(str(error))}"
        raise AboardError(training.MODEL, seen, "config", path=folder / CONFIG) from None
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
        raise AboardError(training.MODEL, seen, "hub", name=name) from error


def _converting(folder: Path) -> Shell:
    """Python in double quotes that writes safetensors; what a shell reads within those is an escape of Python's."""
    place = "".join(map(_spelled, str(folder)))
    code = (
        f"from transformers import AutoModelForCausalLM as M; M.from_pretrained('{place}').save_pretrained('{place}')"
    )
    return Shell(f'"{code}"')


def _spelled(char: str) -> str:
    return char if char.isprintable() and char not in _READ_BY_SHELLS else f"\\U{ord(char):08x}"


def _number(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else None
