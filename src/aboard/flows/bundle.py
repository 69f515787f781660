"""`aboard bundle`: a run's record as one redacted archive, the same bytes each time; what goes in is known before."""

import gzip
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aboard import __version__
from aboard.core.scrub import Scrub
from aboard.diagnoses import AboardError, records
from aboard.flows.parts import dumped, parts_of
from aboard.lazy import dataclass
from aboard.record.places import LOOK, PRIVATE_FILE, RunDirectory

ROOT = "aboard-bundle"
MANIFEST = "manifest.json"
FORMAT = 1
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
    scrubbed = {name: _scrubbed(name, data, scrub) for name, data in parts_of(run).items()}
    parts = {name: data for name, data in scrubbed.items() if data is not None}
    removed = {kind: count for kind, count in sorted(scrub.removed.items()) if count}
    manifest = {
        "format": FORMAT,
        "aboard": __version__,
        "run": run.id,
        "parts": {name: len(content) for name, content in sorted(parts.items())},
        "removed": removed,
    }
    return Bundle(run=run.id, parts={MANIFEST: dumped(manifest, indent=1), **parts}, removed=removed)


def write(bundle: Bundle, path: Path) -> int:
    """Readable for its owner only, never over another file; tells its size."""
    data = bundle.data()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    except FileExistsError:
        raise AboardError(records.BUNDLE_THERE, f"{path} is there already", path=path) from None
    except OSError as error:
        seen = f"{path} can't be written: {error.strerror}"
        raise AboardError(records.BUNDLE_WRITE, seen, run=bundle.run, name=path.name) from None
    return len(data)


def _scrubbed(name: str, data: bytes, scrub: Scrub) -> bytes | None:
    """None for what should be JSON and isn't."""
    if name.endswith(".jsonl"):
        return b"".join(dumped(scrub.value(_without_env(entry))) for entry in _entries(data))
    if not name.endswith(".json"):
        return scrub.text(data.decode("utf-8", "replace")).encode("utf-8", "backslashreplace")
    try:
        # Looks are for machines, and large.
        return dumped(scrub.value(_without_env(json.loads(data))), indent=None if name.startswith(LOOK) else 1)
    except ValueError:
        return None


def _without_env(value: Any) -> Any:
    """The names of variables, and the values of those that say how ranks talk to each other."""
    if isinstance(value, list):
        return [_without_env(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _redact_field(key, each) for key, each in value.items()}


def _redact_field(key: str, value: Any) -> Any:
    if key == "env" and isinstance(value, dict):
        return _env(value)
    if key == "command" and isinstance(value, str) and "--env" in value:
        # As it was typed, with the values of variables in it.
        return LEFT_OUT
    return _without_env(value)


def _env(env: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if name.startswith(_TOLD_ENV) or name in _TOLD_NAMES else LEFT_OUT for name, value in env.items()
    }


def _entries(data: bytes) -> Iterator[Any]:
    for line in io.BytesIO(data):
        try:
            yield json.loads(line)
        except ValueError:
            continue
