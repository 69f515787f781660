"""Downloads the model once on the head, before ranks start, and reads the limits in its config."""

from pathlib import Path
from typing import Any

from aboard.core.decoding import parse_json
from aboard.core.text.hub_names import is_path, looks_like_path, strip_hub_prefix
from aboard.diagnoses import AboardError, Shell
from aboard.diagnoses.untrusted import escape_text
from aboard.foreign_files import MOST_JSON, read_foreign_file
from aboard.trainer.checks.training_rules import ModelLimits
from aboard.trainer.data.intake.model_code import require_known_type
from aboard.trainer.diagnoses import training

CONFIG = "config.json"
# The files of a model that transformers reads; weights in other formats are skipped.
FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
WEIGHTS = "*.safetensors"
CODE = "*.py"
# Special to a shell within double quotes, or to the Python code there.
_READ_BY_SHELLS = "\"'\\$`!"


def fetch_model(name: str, *, from_scratch: bool, trust_remote_code: bool = False) -> Path:
    """The model's directory on this machine; a Hub model is downloaded or taken from the Hub's cache.

    Code that comes with a model is neither downloaded nor used without `trust_remote_code`.
    """
    folder = Path(name)
    if not folder.is_dir():
        _require_hub_name(name)
        weights = [] if from_scratch else [WEIGHTS]
        folder = _download_model(name, [*FILES, *weights, *([CODE] if trust_remote_code else [])])
    if not (folder / CONFIG).is_file():
        seen = f"{folder} has no {CONFIG}, so transformers can't load it as a model"
        raise AboardError(training.MODEL, seen, "folder", folder=folder)
    if not trust_remote_code:
        require_known_type(folder)
    if not from_scratch and not any(folder.glob(WEIGHTS)):
        others = sorted(path.name for path in folder.glob("*.bin"))
        beside = f", only {others[0]}" if others else ""
        seen = f"{folder} has no safetensors{beside}"
        if others:
            raise AboardError(training.MODEL, seen, "convert", code=_build_conversion(folder))
        raise AboardError(training.MODEL, seen, "scratch")
    return folder


def read_model_facts(folder: Path) -> ModelLimits:
    """The limits in config.json; for a multimodal model, those of its text part."""
    try:
        config: Any = parse_json(read_foreign_file(folder / CONFIG, MOST_JSON, in_model=True))
    except (OSError, ValueError) as error:
        seen = f"{folder / CONFIG} can't be read: {escape_text(getattr(error, 'strerror', None) or str(error))}"
        raise AboardError(training.MODEL, seen, "config", path=folder / CONFIG) from None
    if not isinstance(config, dict):
        raise AboardError(training.MODEL, f"{folder / CONFIG} is not a JSON object", "config", path=folder / CONFIG)
    text_config = config.get("text_config")
    config = {**config, **(text_config if isinstance(text_config, dict) else {})}
    return ModelLimits(
        vocabulary=_get_count(config, "vocab_size"), positions=_get_count(config, "max_position_embeddings")
    )


def _download_model(name: str, patterns: list[str]) -> Path:
    # Imported here: only Hub models need it.
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        return Path(snapshot_download(strip_hub_prefix(name), allow_patterns=patterns))
    except Exception as error:  # the hub raises whatever its client, its validators and its cache raise
        message = escape_text(" ".join(str(error).split()), 300)
        seen = (
            f"there is no directory '{escape_text(name)}', and no such model can be downloaded from the Hub: {message}"
        )
        raise AboardError(training.MODEL, seen, "hub", name=strip_hub_prefix(name)) from error


def _require_hub_name(name: str) -> None:
    """Raises for a name that may be a path with a typo: anybody can own a repository of that name."""
    beside = "/" in name and Path(name).expanduser().parent.is_dir()
    if is_path(name) or beside:
        parent = Path(name).expanduser().parent
        raise AboardError(training.MODEL, f"there is no directory '{escape_text(name)}'", "folder", folder=parent)
    if looks_like_path(name):
        seen = f"there is no directory '{escape_text(name)}', and the name looks like that of a directory"
        raise AboardError(training.MODEL, seen, "unclear", name=name)


def _build_conversion(folder: Path) -> Shell:
    """Double-quoted Python code that writes safetensors; characters special to a shell become Python escapes."""
    place = "".join(map(_escape_char, str(folder)))
    code = (
        f"from transformers import AutoModelForCausalLM as M; M.from_pretrained('{place}').save_pretrained('{place}')"
    )
    return Shell(f'"{code}"')


def _escape_char(char: str) -> str:
    return char if char.isprintable() and char not in _READ_BY_SHELLS else f"\\U{ord(char):08x}"


def _get_count(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else None
