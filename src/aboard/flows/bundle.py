"""`aboard bundle`: a run's record as one redacted archive, the same bytes each time; what goes in is known before."""

import gzip
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from aboard import __version__
from aboard.core.errors import AboardError
from aboard.core.scrub import Scrub
from aboard.record.places import PRIVATE_FILE, RunDirectory
from aboard.record.reading import LogReader

ROOT = "aboard-bundle"
MANIFEST = "manifest.json"
LOGS = "logs.jsonl"
FORMAT = 1
# Of each rank's log the last lines, of samples the last ones: what a verdict needs, and no more.
LINES_PER_RANK = 400
_MOST_LOG_BYTES = 64 * 2**20
_MOST_SAMPLES = 20_000
_MOST_BYTES = 64 * 2**20
_CONDUCTOR_BYTES = 256 * 1024
# Values of these say how a run was set up, and none of them is anybody's secret; of the rest, the names are enough.
_TOLD_ENV = (
    "NCCL_",
    "TORCH_",
    "GLOO_",
    "CUDA_",
    "OMP_",
    "UCX_",
    "FI_",
    "MASTER_",
    "LOCAL_",
    "GROUP_",
    "ROLE_",
    "ABOARD_",
)
_TOLD_NAMES = frozenset({"RANK", "WORLD_SIZE", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE"})
LEFT_OUT = "[left out]"


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """An archive that is not yet written: its files by name, and what was taken out of them."""

    run: str
    parts: Mapping[str, bytes]
    removed: Mapping[str, int]

    def data(self) -> bytes:
        """The archive: no times, no users, one order, so that equal records give equal bytes."""
        packed = io.BytesIO()
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for name, content in sorted(self.parts.items()):
                entry = tarfile.TarInfo(f"{ROOT}/{name}")
                entry.size, entry.mode = len(content), PRIVATE_FILE
                tar.addfile(entry, io.BytesIO(content))
        return packed.getvalue()


def pack(run: RunDirectory, scrub: Scrub) -> Bundle:
    """Reads the record and scrubs it; nothing is written."""
    parts: dict[str, bytes] = {}
    for path in sorted(run.path.glob("*.json")):
        document = _document(path)
        if document is not None:
            parts[path.name] = _dumped(scrub.value(_without_env(document) if path == run.plan else document), indent=1)
    for path in sorted(run.path.glob("*.jsonl")):
        most = _MOST_SAMPLES if path == run.samples else None
        parts[path.name] = b"".join(_dumped(scrub.value(entry)) for entry in _entries(path, most))
    parts[LOGS] = b"".join(_dumped(scrub.value(entry)) for entry in _lines(run))
    tail = _tail(run.conductor_log)
    if tail:
        parts[run.conductor_log.name] = scrub.text(tail).encode("utf-8", "backslashreplace")
    removed = {kind: count for kind, count in sorted(scrub.removed.items()) if count}
    manifest = {
        "format": FORMAT,
        "aboard": __version__,
        "run": run.id,
        "parts": {name: len(content) for name, content in sorted(parts.items())},
        "removed": removed,
    }
    return Bundle(run=run.id, parts={MANIFEST: _dumped(manifest, indent=1), **parts}, removed=removed)


def write(bundle: Bundle, path: Path) -> int:
    """Readable for its owner only, never over another file; tells its size."""
    data = bundle.data()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    except FileExistsError:
        raise AboardError(
            "bundle-there", f"{path} is there already", fix=f"rm {path}    # or another name: -o"
        ) from None
    except OSError as error:
        fix = f"aboard bundle {bundle.run} -o /a/disk/with/room/{path.name}"
        raise AboardError("bundle-write", f"{path} can't be written: {error.strerror}", fix=fix) from None
    return len(data)


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes()) if path.stat().st_size <= _MOST_BYTES else None
    except (OSError, ValueError):
        return None


def _without_env(plan: Any) -> Any:
    """The names of variables, and the values of those that say how ranks talk to each other."""
    if isinstance(plan, list):
        return [_without_env(each) for each in plan]
    if not isinstance(plan, dict):
        return plan
    return {
        key: _env(value) if key == "env" and isinstance(value, dict) else _without_env(value)
        for key, value in plan.items()
    }


def _env(env: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if name.startswith(_TOLD_ENV) or name in _TOLD_NAMES else LEFT_OUT for name, value in env.items()
    }


def _entries(path: Path, most: int | None) -> Iterator[Any]:
    """Whole lines that are JSON; of a long file the last ones."""
    try:
        lines = path.read_bytes()[-_MOST_BYTES:].split(b"\n")[:-1]
    except OSError:
        return
    for line in lines[-most:] if most else lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _lines(run: RunDirectory) -> Iterator[dict[str, Any]]:
    """The last lines of each rank, rank by rank."""
    if not run.logs.is_dir():
        return
    with closing(LogReader(run.logs)) as reader:
        snapshot = reader.snapshot()
        left = _MOST_LOG_BYTES
        for rank in snapshot.ranks:
            last = [line for _entry, line in islice(reader.backward(snapshot, rank), LINES_PER_RANK)]
            for line in reversed(last):
                left -= len(line.text)
                if left < 0:
                    return
                text = line.text.decode("utf-8", "replace")
                yield {"at": line.at, "rank": rank, "node": line.node, "stream": line.stream, "text": text}


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-_CONDUCTOR_BYTES:].decode("utf-8", "replace")
    except OSError:
        return ""


def _dumped(value: Any, indent: int | None = None) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=indent) + "\n").encode("utf-8", "backslashreplace")
