"""`aboard bundle`: packs a run's record into one redacted, reproducible archive, listed before it is written."""

import gzip
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aboard import __version__
from aboard.core.decoding import parse_json, try_parse_json
from aboard.core.secrets.secret_names import MASK, is_secret
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.diagnoses import AboardError
from aboard.diagnoses.usage import run_records
from aboard.engine.records.record_parts import FORMAT, LOGS, MANIFEST, ROOT, encode_json, read_record_parts
from aboard.lazy_dataclass import dataclass
from aboard.record.run_directory import PRIVATE_FILE, SNAPSHOT_PREFIX, RunDirectory

# The values of these variables show how a run was set up; of all others only names are kept.
_PUBLIC_ENV_PREFIXES = (
    "NCCL_", "TORCH_", "GLOO_", "CUDA_", "OMP_", "UCX_", "FI_", "MASTER_", "LOCAL_", "GROUP_", "ROLE_",
)  # fmt: skip
_PUBLIC_ENV_NAMES = frozenset({
    "RANK", "WORLD_SIZE", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE",
    # Those that Aboard itself sets.
    "ABOARD_BEACON", "ABOARD_CHILD", "ABOARD_CONTAINER", "ABOARD_CONTINUED", "ABOARD_RUN_ID", "ABOARD_STACKS",
    "ABOARD_TRAINING",
})  # fmt: skip
REDACTED = "[left out]"


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """An archive that is not yet written: its files by name, and the number of redactions by kind."""

    run: str
    parts: Mapping[str, bytes]
    removed: Mapping[str, int]

    def data(self) -> bytes:
        """The archive, without times and users and in a fixed order, so that equal records give equal bytes."""
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


def pack_run(run: RunDirectory, scrubber: SecretScrubber) -> Bundle:
    """Reads and redacts the record; writes nothing."""
    # Logs first: a line of a key that was found there may be quoted elsewhere.
    record = sorted(read_record_parts(run).items(), key=lambda part: (part[0] != LOGS, part[0]))
    redacted = {name: _scrub_part(name, data, scrubber) for name, data in record}
    parts = {name: data for name, data in redacted.items() if data is not None}
    removed = {kind: count for kind, count in sorted(scrubber.removed.items()) if count}
    removed |= {f"{name}, which is damaged": 1 for name, data in redacted.items() if data is None}
    manifest = {
        "format": FORMAT,
        "aboard": __version__,
        "run": run.id,
        "parts": {name: len(content) for name, content in sorted(parts.items())},
        "removed": removed,
    }
    return Bundle(run=run.id, parts={MANIFEST: encode_json(manifest, indent=1), **parts}, removed=removed)


def write_bundle(run: str, data: bytes, path: Path) -> None:
    """Writes the archive, readable only by its owner, never overwriting a file."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    except FileExistsError:
        raise AboardError(run_records.BUNDLE_THERE, f"{path} already exists", path=path) from None
    except OSError as error:
        seen = f"{path} can't be written: {error.strerror}"
        raise AboardError(run_records.BUNDLE_WRITE, seen, run=run, name=path.name) from None


def _scrub_part(name: str, data: bytes, scrubber: SecretScrubber) -> bytes | None:
    """The redacted part, or None if it is invalid JSON."""
    if name == LOGS:
        return b"".join(map(encode_json, _scrub_logs([*_parse_jsonl(data)], scrubber)))
    if name.endswith(".jsonl"):
        return b"".join(encode_json(scrubber.value(redact_plan_value(entry))) for entry in _parse_jsonl(data))
    if not name.endswith(".json"):
        return scrubber.text(data.decode("utf-8", "replace")).encode("utf-8", "backslashreplace")
    try:
        # Snapshots are large and read only by programs: no indentation.
        return encode_json(
            scrubber.value(redact_plan_value(parse_json(data))), indent=None if name.startswith(SNAPSHOT_PREFIX) else 1
        )
    except ValueError:
        return None


def _scrub_logs(entries: list[dict[str, Any]], scrubber: SecretScrubber) -> list[dict[str, Any]]:
    """Scrubs each stream of each rank as a whole: a secret may span lines and the pieces of a line."""
    streams: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for entry in entries:
        streams.setdefault((entry["rank"], entry["stream"]), []).append(entry)
    for lines in streams.values():
        last = [not after.get("continues") for after in lines[1:]] + [True]
        ends = ["\n" if whole else "" for whole in last]
        pieces = [line["text"] + end for line, end in zip(lines, ends, strict=True)]
        scrubbed = scrubber.pieces(pieces, cut=True)
        for line, text, end in zip(lines, scrubbed, ends, strict=True):
            line["text"] = text.removesuffix(end)
    return [{**entry, "node": scrubber.text(entry["node"])} for entry in entries]


def redact_plan_value(value: Any) -> Any:
    """Keeps the names of environment variables, but only the values of public ones."""
    if isinstance(value, list):
        return [redact_plan_value(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _redact_field(key, each) for key, each in value.items()}


def _redact_field(key: str, value: Any) -> Any:
    if key == "env" and isinstance(value, dict):
        return {name: _redact_variable(name, each) for name, each in value.items()}
    if key == "command" and isinstance(value, str) and "--env" in value:
        # The typed command contains the values of variables.
        return REDACTED
    return redact_plan_value(value)


def _redact_variable(name: str, value: Any) -> Any:
    if name in _PUBLIC_ENV_NAMES:
        return value
    if is_secret(name):
        return MASK
    return value if name.startswith(_PUBLIC_ENV_PREFIXES) else REDACTED


def _parse_jsonl(data: bytes) -> Iterator[Any]:
    for line in io.BytesIO(data):
        if (entry := try_parse_json(line)) is not None:
            yield entry
