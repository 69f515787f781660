"""What is broken, written down beside the sandbox's state, so that any process can heal it."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from aboard.diagnoses import SandboxError, sandbox
from aboard.lazy import dataclass
from aboard.sandbox import state
from aboard.sandbox.host import Host
from aboard.sandbox.process import Process
from aboard.sandbox.sandbox import Sandbox

_LOCK_TIMEOUT = 120.0
_LOCK_PAUSE = 0.02


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A fault as data; `boot` is the first process of the host when it was injected."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    boot: Process | None


@contextmanager
def opened(box: Sandbox, host: Host) -> Iterator[list[Entry]]:
    """The entries of one host, for this process alone; `save` writes them down."""
    place = _place(box)
    place.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(place / f"{host.name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _take(handle, host)
        yield read(box, host.name)
    finally:
        os.close(handle)


def read(box: Sandbox, name: str) -> list[Entry]:
    """What was written down for a host, oldest first."""
    try:
        raw = json.loads((_place(box) / f"{name}.json").read_text())
    except FileNotFoundError:
        return []
    return [
        Entry(name=entry["name"], fields=entry["fields"], boot=Process(**entry["boot"]) if entry["boot"] else None)
        for entry in raw
    ]


def save(box: Sandbox, host: Host, entries: list[Entry]) -> None:
    """All of it or nothing of it."""
    target = _place(box) / f"{host.name}.json"
    draft = target.with_suffix(".new")
    draft.write_text(json.dumps([asdict(entry) for entry in entries]))
    draft.replace(target)


def _place(box: Sandbox) -> Path:
    return state.directory(box.name) / "faults"


def _take(handle: int, host: Host) -> None:
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SandboxError(
                    sandbox.BUSY,
                    f"another aboard has been breaking or healing {host.name} for {_LOCK_TIMEOUT:.0f} s",
                    "host",
                ) from None
            time.sleep(_LOCK_PAUSE)
        else:
            return
