"""The data files of a path: the file itself, or those of a directory that contain rows."""

import os
import re
from itertools import count
from pathlib import Path

from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import escape_text
from aboard.foreign_files import refuse_outside_link
from aboard.trainer.data.intake.chunks import Store
from aboard.trainer.data.intake.compressed_files import strip_compression_suffix
from aboard.trainer.diagnoses import data

STORE_BY_SUFFIX: dict[str, Store] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".idx": "megatron",
}
_INDEX = ".idx"
# Metadata that `datasets` writes beside its rows.
_NO_ROWS = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"})
# Parts of file names that indicate a split, as the hub reads them.
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
}


_TO_JSON_LINES = "import csv, json, sys; [print(json.dumps(row)) for row in csv.DictReader(sys.stdin{})]"
# Tables, with the program that turns them into lines of JSON.
_CONVERTERS = {".csv": _TO_JSON_LINES.format(""), ".tsv": _TO_JSON_LINES.format(', delimiter="\\t"')}


def name_new_file(stem: str) -> str:
    """`STEM.jsonl`, or the first of `STEM-2.jsonl`, … that does not exist: a suggested command overwrites nothing."""
    names = (f"{stem}{'' if number == 1 else f'-{number}'}.jsonl" for number in count(1))
    return next(name for name in names if not os.path.lexists(name))


def find_data_files(path: str, split: str | None) -> list[str]:
    """The file itself, or a directory's files by name, of one split if their names indicate splits."""
    if Path(path).is_dir():
        return _list_directory(path, split)
    name = path.removesuffix(".bin") + ".idx" if path.endswith(".bin") else path
    ending = get_data_suffix(name)
    if ending in _CONVERTERS and path.lower().endswith(ending):
        seen = f"'{escape_text(path)}' is a table (CSV or TSV), which Aboard doesn't read"
        rows = name_new_file(path[: -len(ending)])
        raise AboardError(data.ENDING, seen, "table", program=_CONVERTERS[ending], file=path, rows=rows)
    if ending not in STORE_BY_SUFFIX:
        seen = f"'{escape_text(path)}' has no known suffix, so Aboard can't tell its format"
        raise AboardError(data.ENDING, seen, "known", endings=" ".join(STORE_BY_SUFFIX))
    if ending == _INDEX:
        _refuse_outside_link(name.removesuffix(_INDEX) + ".bin", [Path(name).parent, Path(name).resolve().parent])
    return [name]


def _list_directory(path: str, split: str | None) -> list[str]:
    files = [name for name in _walk_directory(path) if get_data_suffix(name) in STORE_BY_SUFFIX]
    # Beside data files, a text file is a README or a license.
    files = [file for file in files if STORE_BY_SUFFIX[get_data_suffix(file)] != "text"] or files
    if not files:
        seen = f"the directory '{escape_text(path)}' has no data files"
        raise AboardError(data.MISSING, seen, "no-rows", endings=" ".join(STORE_BY_SUFFIX))
    split_by_file = {file: _guess_split(os.path.relpath(file, path)) for file in files}
    splits = sorted({name for name in split_by_file.values() if name})
    for file in files:
        for name in (file, file.removesuffix(_INDEX) + ".bin"):
            _refuse_outside_link(name, [Path(path)])
    if split is None and len(splits) <= 1:
        return files
    # Training on a test set shows in no curve: if names indicate splits, only one of them is read.
    wanted_split = _SPLITS.get(split or "train", split)
    selected = [file for file in files if split_by_file[file] == wanted_split]
    if not selected:
        seen = (
            f"'{escape_text(path)}' has no file for the split '{wanted_split}'; splits by file name:"
            f" {', '.join(splits) or 'none'}"
        )
        if splits:
            raise AboardError(data.SPLIT, seen, "other", split=splits[0])
        raise AboardError(data.SPLIT, seen, "none")
    return selected


def _refuse_outside_link(name: str, folders: list[Path]) -> None:
    """A link to a private file would be a row; a file that is named itself may be a link."""
    if Path(name).is_symlink():
        refuse_outside_link(Path(name).absolute(), folders)


def _walk_directory(path: str) -> list[str]:
    names: list[str] = []
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names += [str(Path(folder) / name) for name in files if not name.startswith(".") and name not in _NO_ROWS]
    return sorted(names)


def get_data_suffix(path: str) -> str:
    """The suffix that decides how the file is read."""
    return Path(strip_compression_suffix(path)).suffix.lower()


def _guess_split(relative: str) -> str | None:
    """The split that a path indicates; the file name takes precedence over its directories."""
    for part in reversed(Path(relative).parts):
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in _SPLITS:
                return _SPLITS[word]
    return None
