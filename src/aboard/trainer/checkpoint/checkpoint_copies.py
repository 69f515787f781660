"""`copies.json` beside a checkpoint's marker: which files of another disk this one is to get, for the node's copier.

`agent/copies/copy_record.py` reads it on the node, and changes its `state`: from "waiting" to "copying" to "copied", or
to "full" where the disk has no room.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import time

from aboard.core.decoding import parse_json
from aboard.core.run.recovery.save_interval import LONGEST_SECONDS
from aboard.durable_files import write_atomically
from aboard.foreign_files import read_foreign_file
from aboard.trainer.checkpoint.checkpoint_parts import plan_copies
from aboard.trainer.checkpoint.commit_marker import NAME as MARKER, CheckpointFile

NAME = "copies.json"
_WAITING, _COPIED, _COPYING = "waiting", "copied", "copying"
_MOST_BYTES = 16 << 20


def write_copy_record(path: Path, serial: int, leader: int, files: Iterable[CheckpointFile]) -> None:
    """Leaves on the disk that `leader` leads what its copier is to fetch from another one; nothing, if that is none."""
    planned = plan_copies(files)
    if leader in planned:
        source, wanted = planned[leader]
        about = {"serial": serial, "leader": leader, "source": source, "state": _WAITING}
        content = {**about, "files": [[file.name, file.bytes, file.sha256] for file in wanted]}
        write_atomically(path / NAME, json.dumps(content), sync=True)


def list_uncopied(folder: Path, names: Iterable[str]) -> dict[str, bool]:
    """The checkpoints that this disk has not got its copies of, and whether it is getting them now."""
    states = {name: _read_state(folder / name) for name in names}
    return {name: state == _COPYING for name, state in states.items() if state not in (None, _COPIED)}


def measure_copying(path: Path) -> float:
    """The seconds from the marker until this disk had its copies; until then, twice those that have passed."""
    state = _read_state(path)
    with suppress(OSError):
        began = (path / MARKER).stat().st_mtime
        if state == _COPIED:
            return max(0.0, (path / NAME).stat().st_mtime - began)
        if state in (_WAITING, _COPYING):
            return min(LONGEST_SECONDS, max(0.0, 2 * (time() - began)))
    return 0.0


def _read_state(path: Path) -> str | None:
    """None if nothing of it is copied to this disk."""
    try:
        return str(parse_json(read_foreign_file(path / NAME, _MOST_BYTES))["state"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError):
        return ""
