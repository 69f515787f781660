"""From what the user named (a file, a directory, a hub name) to chunks that workers read."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from aboard.core.words import nearest
from aboard.data.intake.chunks import CHUNK_BYTES, Chunk, Store
from aboard.data.intake.columnar import arrow_chunks, arrow_rows, parquet_chunks
from aboard.data.intake.files import KNOWN, Found, files_of
from aboard.data.intake.listed import is_lines
from aboard.data.intake.megatron import megatron_chunks
from aboard.data.intake.online import hub_reachable
from aboard.data.intake.opened import COMPRESSED, STREAM_ERRORS, bare
from aboard.diagnoses import AboardError, data
from aboard.diagnoses.untrusted import Untrusted, visible
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """One source as the user gave it.

    `format` and `text_column` are recognised where they are None; `split` is the hub's, or a directory's by its file
    names; `config` is the hub's second name, as `en` in wikipedia's; `weight` is its share when several are mixed.
    """

    path: str
    format: str | None = None
    text_column: str | None = None
    split: str | None = None
    config: str | None = None
    weight: float = 1.0


def sources(spec: SourceSpec, *, chunk_bytes: int = CHUNK_BYTES) -> list[Chunk]:
    """The chunks of a source, in order: the same list for the same files, on every machine."""
    if Path(spec.path).exists():
        return [chunk for file in files_of(spec.path, spec.split) for chunk in _chunks(file, chunk_bytes)]
    if is_hub_name(spec.path):
        return hub_chunks(spec.path, config=spec.config, split=spec.split or "train", every=chunk_bytes)
    seen = f"there is no file or directory '{visible(spec.path)}'"
    near = _near(Path(spec.path))
    if near is not None:
        raise AboardError(data.MISSING, seen, "near", path=near)
    raise AboardError(data.MISSING, seen, "look", folder=Path(spec.path).parent)


def _near(path: Path) -> Path | None:
    """The file whose name, in the same directory, is most like this one, if any is like it."""
    try:
        near = nearest(path.name, sorted(other.name for other in path.parent.iterdir()))
    except OSError:
        return None
    return path.with_name(near) if near else None


def _chunks(file: Found, every: int) -> list[Chunk]:
    try:
        return _cut(file, every)
    except STREAM_ERRORS as error:
        return [_unreadable(file, str(error))]


def _cut(file: Found, every: int) -> list[Chunk]:
    store = KNOWN[file.ending]
    if store == "parquet":
        return parquet_chunks(file.shown, file.path, every=every)
    if store == "arrow":
        return arrow_chunks(file.shown, file.path, every=every)
    if store == "megatron":
        return megatron_chunks(file.shown, file.path, every=every)
    size = Path(file.path).stat().st_size
    if store == "json" and not is_lines(file.path):
        return [Chunk(file=file.shown, path=file.path, store="json", size=size)]
    if store == "text" and is_lines(file.path):
        seen = f"'{file.shown.visible()}' holds JSON lines, and its name says plain text"
        raise AboardError(data.ENDING, seen, "rename", old=file.shown, new=_as_jsonl(file.path))
    lines: Store = "text" if store == "text" else "jsonl"
    if file.path.lower().endswith(COMPRESSED):  # such a stream can't be entered in its middle
        return [Chunk(file=file.shown, path=file.path, store=lines, size=size)]
    return [
        Chunk(file=file.shown, path=file.path, store=lines, start=start, stop=stop, first=line, size=stop - start)
        for start, stop, line in cut(file.path, every=every)
        if stop > start
    ]


def _as_jsonl(name: str) -> str:
    plain = bare(name)
    return f"{plain.removesuffix(Path(plain).suffix)}.jsonl{name.removeprefix(plain)}"


def _unreadable(file: Found, why: str) -> Chunk:
    return Chunk(file=file.shown, path=file.path, store="broken", why=Untrusted(f"the file can't be read: {why}"))


_BLOCK = 4 << 20


class Cut(NamedTuple):
    """Whole lines: from byte `start` up to `stop`, the first of them line number `line`."""

    start: int
    stop: int
    line: int


def cut(path: str, *, every: int) -> list[Cut]:
    """Ranges of about `every` bytes; a line belongs to the range in which it starts, however long it is.

    One pass that counts newlines, in bounded memory: under a second a GB from the page cache, hundreds of times
    faster than the same bytes are tokenized. A file of a single range is not read at all.
    """
    size = Path(path).stat().st_size
    starts = [(0, 1)] if size <= every else _starts(path, size, every)
    stops = [start for start, _ in starts[1:]] + [size]
    return [Cut(start, stop, line) for (start, line), stop in zip(starts, stops, strict=True)]


def _starts(path: str, size: int, every: int) -> list[tuple[int, int]]:
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


_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_ENDING = re.compile(r"\.(jsonl?|ndjson|parquet|arrow|idx|bin|txt|csv)(\.\w+)?$", re.IGNORECASE)


def is_hub_name(text: str) -> bool:
    """Whether a path that is not there may be a name on the hub: owner/name, with no ending of a file."""
    return bool(_NAME.fullmatch(text)) and not _ENDING.search(text)


def hub_chunks(name: str, *, config: str | None, split: str, every: int) -> list[Chunk]:
    """The chunks of a hub data set's split, over the arrow files in which `datasets` keeps it."""
    found = _loaded(name, config, split)
    chunks: list[Chunk] = []
    shown, rows = Untrusted(f"hub:{name}/{split}"), 0
    for file in found.cache_files:
        cut = arrow_chunks(shown, file["filename"], every=every)
        chunks += [replace(chunk, first=chunk.first + rows) for chunk in cut]
        rows += arrow_rows(file["filename"])
    return chunks


def _loaded(name: str, config: str | None, split: str) -> Any:
    import datasets  # noqa: PLC0415 - takes seconds to import, which a local file needn't wait for

    if not datasets.config.HF_HUB_OFFLINE and not hub_reachable():
        # Else each of its files is tried for half a minute before the cache is looked into.
        datasets.config.HF_HUB_OFFLINE = True
    try:
        return datasets.load_dataset(name, config, split=split)
    except Exception as error:  # `datasets` raises whatever its downloader, its parsers and its builders raise
        seen = f"the data set '{name}' can't be had from the hub: {visible(' '.join(str(error).split()), 300)}"
        raise AboardError(data.HUB, seen, name=name) from error
