"""Lists the chunks that workers read of what the user named: a file, a directory, or a hub name."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from aboard.core.text.hub_names import looks_like_path, strip_hub_prefix
from aboard.core.text.input_text import find_nearest
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.foreign_files import require_regular_file
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.intake.chunks import CHUNK_BYTES, Chunk, Store, make_broken_chunk
from aboard.trainer.data.intake.compressed_files import COMPRESSED_SUFFIXES, STREAM_ERRORS, strip_compression_suffix
from aboard.trainer.data.intake.data_files import STORE_BY_SUFFIX, find_data_files, get_data_suffix
from aboard.trainer.data.intake.hub_reachability import is_hub_reachable
from aboard.trainer.data.intake.json_array import is_json_lines
from aboard.trainer.data.intake.megatron import list_megatron_chunks
from aboard.trainer.data.intake.parquet_arrow import count_arrow_rows, list_arrow_chunks, list_parquet_chunks
from aboard.trainer.diagnoses import data


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """One source as the user gave it.

    `format` and `text_column` are detected if None; `split` is the hub's, or a directory's by its file names; `config`
    is the hub's configuration name, such as `en` for wikipedia; `revision` is a commit, tag or branch of the hub.
    """

    path: str
    format: str | None = None
    text_column: str | None = None
    split: str | None = None
    config: str | None = None
    revision: str | None = None


def list_source_chunks(spec: SourceSpec, *, chunk_bytes: int = CHUNK_BYTES) -> list[Chunk]:
    """The chunks of a source in order: the same list for the same files on every machine."""
    if Path(spec.path).exists():
        _check_local_choice(spec)
        files = find_data_files(spec.path, spec.split)
        return [chunk for file in files for chunk in _list_file_chunks(file, chunk_bytes)]
    name = strip_hub_prefix(spec.path)
    if is_hub_name(name) and not looks_like_path(spec.path) and not _is_beside_files(spec.path):
        return list_hub_chunks(
            name, config=spec.config, split=spec.split or "train", revision=spec.revision, every=chunk_bytes
        )
    seen = f"there is no file or directory '{escape_text(spec.path)}'"
    near = _find_similar_path(Path(spec.path))
    if near is not None:
        raise AboardError(data.MISSING, seen, "near", path=near)
    if is_hub_name(name) and not _is_beside_files(spec.path):
        raise AboardError(data.MISSING, f"{seen}, and the name looks like that of one", "unclear", name=name)
    raise AboardError(data.MISSING, seen, "look", folder=Path(spec.path).parent)


def _is_beside_files(path: str) -> bool:
    """Whether the directory that it names exists, so that the rest of it is missing there."""
    return "/" in path and Path(path).parent.is_dir()


def _check_local_choice(spec: SourceSpec) -> None:
    """What a file or a directory on this machine doesn't have would be ignored."""
    is_file = Path(spec.path).is_file()
    keys = {"split": spec.split if is_file else None, "subset": spec.config, "revision": spec.revision}
    for key, value in keys.items():
        if value is not None:
            kind = "a file" if is_file else "a directory"
            raise AboardError(data.SPLIT, f"'{escape_text(spec.path)}' is {kind}, and has no {key}", "local", key=key)


def _find_similar_path(path: Path) -> Path | None:
    """The most similar file name in the same directory, if any is similar."""
    try:
        near = find_nearest(path.name, sorted(other.name for other in path.parent.iterdir()))
    except OSError:
        return None
    return path.with_name(near) if near else None


def _list_file_chunks(path: str, every: int) -> list[Chunk]:
    try:
        return _split_file(path, every)
    except STREAM_ERRORS as error:
        return [make_broken_chunk(Untrusted(path), path, error)]


_CHUNK_LISTS = {"parquet": list_parquet_chunks, "arrow": list_arrow_chunks, "megatron": list_megatron_chunks}


def _split_file(path: str, every: int) -> list[Chunk]:
    file, stat = Untrusted(path), Path(path).stat()
    require_regular_file(stat)
    store = STORE_BY_SUFFIX[get_data_suffix(path)]
    if store in _CHUNK_LISTS:
        return _CHUNK_LISTS[store](file, path, every=every)
    if store == "json" and not is_json_lines(path):
        return [Chunk(file=file, path=path, store="json", size=stat.st_size)]
    if store == "text" and is_json_lines(path):
        seen = f"'{file.visible()}' contains JSON lines, but has the suffix of a plain text file"
        raise AboardError(data.ENDING, seen, "rename", old=file, new=_rename_to_jsonl(path))
    lines: Store = "text" if store == "text" else "jsonl"
    if path.lower().endswith(COMPRESSED_SUFFIXES):  # such a stream can't be read from its middle
        return [Chunk(file=file, path=path, store=lines, size=stat.st_size)]
    return [
        Chunk(file=file, path=path, store=lines, start=start, stop=stop, first=line, size=stop - start)
        for start, stop, line in find_line_ranges(path, every=every)
        if stop > start
    ]


def _rename_to_jsonl(name: str) -> str:
    plain = strip_compression_suffix(name)
    return f"{plain.removesuffix(Path(plain).suffix)}.jsonl{name.removeprefix(plain)}"


_BLOCK = 4 << 20


def find_line_ranges(path: str, *, every: int) -> list[tuple[int, int, int]]:
    """Ranges of about `every` bytes: start, stop, and the number of the first line.

    A line belongs to the range in which it starts, however long it is.
    One pass that counts newlines, in bounded memory: under a second per GB from the page cache, hundreds of times
    faster than tokenizing the same bytes. A file of a single range is not read at all.
    """
    size = Path(path).stat().st_size
    starts = [(0, 1)] if size <= every else _find_range_starts(path, size, every)
    stops = [start for start, _ in starts[1:]] + [size]
    return [(start, stop, line) for (start, line), stop in zip(starts, stops, strict=True)]


def _find_range_starts(path: str, size: int, every: int) -> list[tuple[int, int]]:
    starts = [(0, 1)]
    offset, line = 0, 1
    target = every
    with Path(path).open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            at = 0
            while target - offset <= len(block):
                newline = block.find(b"\n", max(target - offset - 1, at))
                if newline < 0:
                    break
                line += block.count(b"\n", at, newline + 1)
                at = newline + 1
                if offset + at < size:
                    starts.append((offset + at, line))
                target = offset + at + every
            line += block.count(b"\n", at)
            offset += len(block)
    return starts


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FILE_SUFFIX = re.compile(r"\.(jsonl?|ndjson|parquet|arrow|idx|bin|txt|csv)(\.\w+)?$", re.IGNORECASE)


def is_hub_name(text: str) -> bool:
    """Whether a path that doesn't exist may be a hub name: owner/name, without a file suffix."""
    return bool(_HUB_NAME.fullmatch(text)) and not _FILE_SUFFIX.search(text)


def list_hub_chunks(
    name: str, *, config: str | None, split: str, every: int, revision: str | None = None
) -> list[Chunk]:
    """The chunks of a split of a hub data set, over the arrow files in which `datasets` caches it."""
    dataset = _load_hub_dataset(name, config, split, revision)
    chunks: list[Chunk] = []
    version = "" if revision is None else f"@{revision}"
    display_name, rows = Untrusted(f"hub:{name}{version}{f'/{config}' if config else ''}/{split}"), 0
    for file in dataset.cache_files:
        file_chunks = list_arrow_chunks(display_name, file["filename"], every=every)
        chunks += [replace(chunk, first=chunk.first + rows) for chunk in file_chunks]
        rows += count_arrow_rows(file["filename"])
    return chunks


def _load_hub_dataset(name: str, config: str | None, split: str, revision: str | None) -> Any:
    import datasets  # noqa: PLC0415 - takes seconds to import, which a local file needn't wait for
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES  # noqa: PLC0415 - as above

    if name in _PACKAGED_DATASETS_MODULES:
        # `pandas`, `text` and so on are no names of the hub for `datasets`: it would read, and with `pandas` even
        # unpickle, what it finds in the working directory.
        seen = f"'{name}' is a format of the library datasets, and no data set of the Hugging Face Hub"
        raise AboardError(data.MISSING, seen, "unclear", name=f"OWNER/{name}")
    if not datasets.config.HF_HUB_OFFLINE and not is_hub_reachable():
        # Otherwise each of its files is tried for half a minute before the cache is used.
        datasets.config.HF_HUB_OFFLINE = True
    try:
        dataset = datasets.load_dataset(name, config, split=split, revision=revision)
    except Exception as error:  # `datasets` raises whatever its downloader, its parsers and its builders raise
        reason = escape_text(" ".join(str(error).split()), 300)
        if unknown := re.fullmatch(r"Unknown split .* Should be one of \['(.*)'\]\.", reason):
            splits = unknown[1].split("', '")
            seen = f"the dataset '{name}' has no split '{split}', only {', '.join(splits)}"
            raise AboardError(data.SPLIT, seen, "other", split=splits[0]) from error
        seen = f"the dataset '{name}' can't be loaded from the Hugging Face Hub: {reason}"
        raise AboardError(data.HUB, seen, name=name) from error
    if revision is not None and datasets.config.HF_HUB_OFFLINE:
        _check_cached_revision(name, revision, dataset)
    return dataset


def _check_cached_revision(name: str, revision: str, dataset: Any) -> None:
    """Offline, `datasets` takes the newest copy in its cache, whatever revision was asked for."""
    from huggingface_hub import constants  # noqa: PLC0415 - imported by `datasets` by now

    reference = Path(constants.HF_HUB_CACHE, f"datasets--{name.replace('/', '--')}", "refs", revision)
    commit = reference.read_text("utf-8").strip() if reference.is_file() else revision
    cached = {Path(file["filename"]).parent.name for file in dataset.cache_files}
    if not all(copy.startswith(commit) for copy in cached):
        found = escape_text(", ".join(sorted(cached)), 200)
        seen = f"the Hugging Face Hub can't be reached, and the cache has revision {found} of '{name}', not {revision}"
        raise AboardError(data.HUB, seen, name=name)
