"""Records of the active faults beside the sandbox's state, so that any process can heal them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.durable_files import acquire_lock, write_atomically
from aboard.lazy_dataclass import dataclass
from aboard.sandbox import saved_state
from aboard.sandbox.host import Host
from aboard.sandbox.namespaces.process_identity import ProcessIdentity
from aboard.sandbox.sandbox import Sandbox

_LOCK_TIMEOUT = 120.0


@dataclass(frozen=True, kw_only=True)
class FaultRecord:
    """A fault as data; `boot` is the host's init process at the time of injection."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    boot: ProcessIdentity | None


@contextmanager
def open_records(box: Sandbox, host: Host) -> Iterator[list[FaultRecord]]:
    """Locks and reads the records of one host; `save_records` writes them."""
    directory = _get_directory(box)
    directory.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(directory / f"{host.name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not acquire_lock(handle, patience=_LOCK_TIMEOUT):
            seen = f"another aboard process has been changing {host.name} for {_LOCK_TIMEOUT:.0f} s"
            raise SandboxError(sandbox.BUSY, seen, "host")
        yield read_records(box, host.name)
    finally:
        os.close(handle)


def read_records(box: Sandbox, name: str) -> list[FaultRecord]:
    """The records of a host, oldest first."""
    try:
        raw = json.loads((_get_directory(box) / f"{name}.json").read_text())
    except FileNotFoundError:
        return []
    return [
        FaultRecord(
            name=entry["name"], fields=entry["fields"], boot=ProcessIdentity(**entry["boot"]) if entry["boot"] else None
        )
        for entry in raw
    ]


def save_records(box: Sandbox, host: Host, entries: list[FaultRecord]) -> None:
    """Writes the records atomically."""
    target = _get_directory(box) / f"{host.name}.json"
    write_atomically(target, json.dumps([asdict(entry) for entry in entries]), sync=False)


def _get_directory(box: Sandbox) -> Path:
    return saved_state.get_directory(box.name) / "faults"
