"""From what the user named (a file, a directory, a hub name) to chunks that workers read."""

from pathlib import Path

from aboard.core.words import nearest
from aboard.data.intake.chunks import CHUNK_BYTES, Chunk, Store
from aboard.data.intake.columnar import arrow_chunks, parquet_chunks
from aboard.data.intake.cut import cut
from aboard.data.intake.files import KNOWN, Found, files_of
from aboard.data.intake.hub import hub_chunks, is_hub_name
from aboard.data.intake.listed import is_lines
from aboard.data.intake.megatron import megatron_chunks
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
