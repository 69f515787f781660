"""Which files a path stands for: itself, or those of a directory that hold rows."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from aboard.data.intake.chunks import Store
from aboard.data.intake.opened import bare
from aboard.diagnoses import AboardError, data
from aboard.diagnoses.untrusted import Untrusted, visible

KNOWN: dict[str, Store] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".idx": "megatron",
}
# What `datasets` writes beside its rows.
_NO_ROWS = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"})
# Words of file names that say a split, as the hub reads them.
_SPLITS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
_SPLITS |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")


class Found(NamedTuple):
    """A file with rows: as the user knows it, as it is opened, and the ending that says how."""

    shown: Untrusted
    path: str
    ending: str


def files_of(path: str, split: str | None) -> list[Found]:
    """The file itself, or a directory's files in the order of their names, of one split where the names tell splits."""
    if Path(path).is_dir():
        return _of_directory(path, split)
    shown = path.removesuffix(".bin") + ".idx" if path.endswith(".bin") else path
    ending = _ending(shown)
    if ending not in KNOWN:
        seen = f"'{visible(path)}' has no ending that says how to read it"
        raise AboardError(data.ENDING, seen, "known", endings=" ".join(KNOWN))
    return [Found(Untrusted(shown), shown, ending)]


def _of_directory(path: str, split: str | None) -> list[Found]:
    found = [Found(Untrusted(name), name, _ending(name)) for name in _walk(path) if _ending(name) in KNOWN]
    # Beside files with columns, a text file is a README or a license.
    found = [file for file in found if KNOWN[file.ending] != "text"] or found
    if not found:
        seen = f"the directory '{visible(path)}' has no file with rows"
        raise AboardError(data.MISSING, seen, "no-rows", endings=" ".join(KNOWN))
    told = {file: _split_of(os.path.relpath(file.path, path)) for file in found}
    there = sorted({name for name in told.values() if name})
    if split is None and len(there) <= 1:
        return found
    # A test set that is trained on shows in no curve: where names tell splits apart, one of them is read.
    wanted = _SPLITS.get(split or "train", split)
    kept = [file for file in found if told[file] == wanted]
    if not kept:
        seen = (
            f"'{visible(path)}' has no file of the split '{wanted}'; its file names say: {', '.join(there) or 'none'}"
        )
        if there:
            raise AboardError(data.SPLIT, seen, "other", split=there[0])
        raise AboardError(data.SPLIT, seen, "none")
    return kept


def _walk(path: str) -> list[str]:
    names: list[str] = []
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names += [str(Path(folder) / name) for name in files if not name.startswith(".") and name not in _NO_ROWS]
    return sorted(names)


def _ending(path: str) -> str:
    return Path(bare(path)).suffix.lower()


def _split_of(relative: str) -> str | None:
    """The split that the name tells; the file's own word before those of its folders."""
    for part in reversed(Path(relative).parts):
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in _SPLITS:
                return _SPLITS[word]
    return None
