"""The weight files of a model directory, and a quick identity of their content. No torch: the head uses it, too."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from aboard.core.decoding import DecodeError, decode_with, parse_json
from aboard.diagnoses import AboardError, TrainerError
from aboard.diagnoses.untrusted import escape_text
from aboard.foreign_files import MOST_JSON, ForeignFileError, read_foreign_file
from aboard.trainer.diagnoses import model_loading

SAFETENSORS = "model.safetensors"
PICKLED = "pytorch_model.bin"
# Samples per file and their size: a quick comparison, not a proof.
SAMPLES_PER_FILE = 16
SAMPLE_BYTES = 4096
DIGEST_BYTES = 16


def list_weight_files(folder: Path, name: str) -> list[Path]:
    """The file of this name, or those that its index names."""
    index = folder / f"{name}.index.json"
    if index.exists():
        return [folder / each for each in _read_index(index)]
    return [folder / name] if (folder / name).is_file() else []


def identify_weights(folder: Path) -> str:
    """Identifies a base model by its weight files alone: its tokenizer and generation settings may change."""
    files = list_weight_files(folder, SAFETENSORS) or list_weight_files(folder, PICKLED)
    if not files:
        raise TrainerError(model_loading.NO_WEIGHTS, f"{folder} has neither {SAFETENSORS} nor its index")
    return hash_file_samples(files).hex()


def hash_file_samples(files: Iterable[Path]) -> bytes:
    digest = hashlib.sha256()
    for path in files:
        try:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                for place in range(SAMPLES_PER_FILE):
                    digest.update(os.pread(file.fileno(), SAMPLE_BYTES, size * place // SAMPLES_PER_FILE))
        except OSError as error:
            raise build_damage_error(path, f"it can't be read ({error.strerror})") from error
    return digest.digest()[:DIGEST_BYTES]


def build_damage_error(path: Path, how: str) -> AboardError:
    return TrainerError(model_loading.DAMAGED, f"{escape_text(str(path), 400)} can't be used: {how}", path=path)


def _read_index(index: Path) -> list[str]:
    """The files that an index names. A downloaded model must not point to others: a fix may suggest to remove one."""
    try:
        content = read_foreign_file(index, MOST_JSON, in_model=True)
        names = decode_with(lambda data: sorted(set(parse_json(data)["weight_map"].values())), content)
    except ForeignFileError as error:
        raise build_damage_error(index, str(error.strerror)) from error
    except (OSError, DecodeError) as error:
        raise build_damage_error(index, "it is not an index of weights") from error
    for name in names:
        if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
            raise build_damage_error(index, f"it refers to a file outside its directory: {escape_text(str(name))}")
        if (file := index.parent / name).exists() and not file.is_file():
            raise build_damage_error(file, "it is not a regular file")
    return names
