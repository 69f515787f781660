"""`aboard why --bundle`: a run that somebody else packed, judged again. What is in it is data, and may be hostile.

Nothing is unpacked to a disk: members are read one after the other, up to a limit, and only those with plain names.
"""

import gzip
import json
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from aboard.core.size import KIB, MIB, size
from aboard.core.verdict import Replayed
from aboard.core.words import visible
from aboard.diagnoses import AboardError, records
from aboard.flows.bundle import FORMAT, MANIFEST, ROOT
from aboard.flows.kept import kept_of
from aboard.flows.replay import replay
from aboard.lazy import dataclass

MOST_PACKED = 256 * MIB
MOST_UNPACKED = 256 * MIB
_MOST_MEMBERS = 100
_MOST_MANIFEST = 64 * KIB


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """What the archive is of, who packed it, and what it comes to."""

    version: str
    replayed: Replayed


class _Bounded:
    """Reads up to the limit: a header can claim any size, and tarfile would read all of it."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._left = MOST_UNPACKED + MIB

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.ReadError("it unpacks to too much")
        return data


def replay_bundle(path: Path) -> Unpacked:
    parts = _read(path)
    manifest = _manifest(parts)
    if manifest.get("format") != FORMAT:
        raise _broken(path, "it has no manifest of a kind that this version knows")
    try:
        replayed = replay(kept_of(str(manifest.get("run", "")), parts))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        # The fold and the rules trust what a conductor wrote, and this may be anything.
        raise _broken(path, f"what it holds can't be judged: {type(error).__name__}") from None
    return Unpacked(version=visible(str(manifest.get("aboard", ""))), replayed=replayed)


def _read(path: Path) -> dict[str, bytes]:
    """The members with a plain name right under the root, as bytes; anything else in the archive is passed by."""
    parts: dict[str, bytes] = {}
    room = MOST_UNPACKED
    try:
        if path.stat().st_size > MOST_PACKED:
            raise _broken(path, f"it has more than {size(MOST_PACKED)}")
        with gzip.open(path) as zipped, tarfile.open(fileobj=cast("Any", _Bounded(zipped)), mode="r|") as tar:
            for number, member in enumerate(tar):
                folder, _, name = member.name.partition("/")
                room -= max(0, member.size)
                if number >= _MOST_MEMBERS or room < 0:
                    raise _broken(path, f"it unpacks to more than {size(MOST_UNPACKED)}, or to too many files")
                file = tar.extractfile(member) if member.isreg() and folder == ROOT and _plain(name) else None
                if file is not None:
                    parts[name] = file.read(member.size)
    except FileNotFoundError:
        raise AboardError(records.BUNDLE_NONE, f"there is no {path}") from None
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise _broken(path, str(error)) from None
    return parts


def _plain(name: str) -> bool:
    return name.replace(".", "", 1).replace("-", "").replace("_", "").isalnum() and not name.startswith(".")


def _manifest(parts: Mapping[str, bytes]) -> dict[str, Any]:
    data = parts.get(MANIFEST, b"")
    try:
        found = json.loads(data) if len(data) <= _MOST_MANIFEST else None
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _broken(path: Path, why: str) -> AboardError:
    return AboardError(records.BUNDLE_BROKEN, f"{path} is no bundle that can be read: {visible(why)}")
