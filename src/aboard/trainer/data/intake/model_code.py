"""Finds Python code that comes with a model or a tokenizer; nothing here runs it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aboard.core.decoding import parse_json
from aboard.diagnoses import AboardError, TrainerError
from aboard.diagnoses.untrusted import escape_text
from aboard.foreign_files import MOST_JSON, read_foreign_file
from aboard.trainer.diagnoses import model_loading

MODEL_SETTINGS = "config.json"
TOKENIZER_SETTINGS = "tokenizer_config.json"


def find_code_error(folder: Path, settings: str = MODEL_SETTINGS) -> AboardError | None:
    """The error that names the code which `auto_map` of a settings file refers to; None without such code."""
    references = list(_list_references(folder / settings))
    if not references:
        return None
    # OTHER/REPOSITORY--FILE.CLASS is code from another repository of the hub.
    repository, _, name = references[0].rpartition("--")
    file = f"{name.partition('.')[0]}.py"
    where = f" of the Hub repository {repository}" if repository else f" in {folder}"
    seen = f"{folder} needs its own code, {escape_text(file + where, 300)}, and running it was not allowed"
    return TrainerError(model_loading.CODE, seen, file=file if repository else folder / file)


def require_known_type(folder: Path) -> None:
    """Raises before anything slow if only the model's own code can build it."""
    error = find_code_error(folder)
    if error is None:
        return
    # Imported here: it takes a second, and few models bring code.
    from transformers import CONFIG_MAPPING  # noqa: PLC0415

    if read_settings(folder / MODEL_SETTINGS).get("model_type") not in CONFIG_MAPPING:
        raise error


def _list_references(path: Path) -> Iterator[str]:
    try:
        references = read_settings(path).get("auto_map")
    except (OSError, ValueError):
        return
    for value in references.values() if isinstance(references, dict) else (references,):
        yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str))


def read_settings(path: Path) -> dict[str, Any]:
    content = parse_json(read_foreign_file(path, MOST_JSON, in_model=True))
    return content if isinstance(content, dict) else {}
