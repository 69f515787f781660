"""`aboard why --bundle`: judges again a run that somebody else packed. Its content is untrusted.

Nothing is unpacked to disk: members are read in order, up to a size limit, and only those with plain names.
"""

import gzip
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from aboard.core.decoding import try_parse_json
from aboard.core.evidence.verdict import ReplayedJudgement
from aboard.core.run.run_state import Run
from aboard.core.text.byte_sizes import KIB, MIB, format_size
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import run_records
from aboard.engine.records.record_parts import FORMAT, MANIFEST, ROOT
from aboard.engine.records.recorded_run import parse_recorded_run
from aboard.engine.records.replay_run import replay_run
from aboard.lazy_dataclass import dataclass

MOST_PACKED = 256 * MIB
MOST_UNPACKED = 256 * MIB
_MOST_MEMBERS = 100
_MOST_MANIFEST = 64 * KIB


@dataclass(frozen=True, kw_only=True)
class ReplayedBundle:
    """The judgement of a bundled run, the version of Aboard that packed it, and how its earlier attempts failed."""

    version: str
    replayed: ReplayedJudgement
    attempts: tuple[str, ...] = ()


class _BoundedReader:
    """Limits the bytes read: a header can claim any size, and tarfile would read all of it."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._left = MOST_UNPACKED + MIB

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.ReadError("it unpacks to too many bytes")
        return data


def replay_bundle(path: Path) -> ReplayedBundle:
    try:
        return _replay_members(path, read_bundle_parts(path))
    except AboardError:
        raise
    except Exception as error:  # noqa: BLE001 - tarfile and the rules trust who wrote a file; this one may contain anything
        raise _make_broken_error(path, f"its contents can't be diagnosed: {type(error).__name__}") from None


def _replay_members(path: Path, parts: Mapping[str, bytes]) -> ReplayedBundle:
    manifest = _parse_manifest(parts)
    if manifest.get("format") != FORMAT:
        raise _make_broken_error(path, "it has no manifest that this version can read")
    recorded = parse_recorded_run(str(manifest.get("run", "")), parts)
    run = Run.replay(recorded.run, recorded.events)
    # Without their fixes, like all that somebody else suggests.
    attempts = tuple(escape_text(str(each), 1000) for each in run.recoveries) if run.generation.number > 1 else ()
    version = escape_text(str(manifest.get("aboard", "")))
    return ReplayedBundle(version=version, replayed=replay_run(recorded), attempts=attempts)


def read_bundle_parts(path: Path) -> dict[str, bytes]:
    """The content of the members with a plain name directly under the root; all others are skipped."""
    parts: dict[str, bytes] = {}
    room = MOST_UNPACKED
    try:
        if path.stat().st_size > MOST_PACKED:
            raise _make_broken_error(path, f"it is larger than {format_size(MOST_PACKED)}")
        with gzip.open(path) as zipped, tarfile.open(fileobj=cast("Any", _BoundedReader(zipped)), mode="r|") as tar:
            for number, member in enumerate(tar):
                folder, _, name = member.name.partition("/")
                room -= max(0, member.size)
                if number >= _MOST_MEMBERS or room < 0:
                    raise _make_broken_error(
                        path, f"it unpacks to more than {format_size(MOST_UNPACKED)}, or to too many files"
                    )
                file = tar.extractfile(member) if member.isreg() and folder == ROOT and _is_plain_name(name) else None
                if file is not None:
                    parts[name] = file.read(member.size)
    except FileNotFoundError:
        raise AboardError(run_records.BUNDLE_NONE, f"there is no {path}") from None
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise _make_broken_error(path, str(error)) from None
    return parts


def _is_plain_name(name: str) -> bool:
    return name.replace(".", "", 1).replace("-", "").replace("_", "").isalnum() and not name.startswith(".")


def _parse_manifest(parts: Mapping[str, bytes]) -> dict[str, Any]:
    data = parts.get(MANIFEST, b"")
    manifest = try_parse_json(data) if len(data) <= _MOST_MANIFEST else None
    return manifest if isinstance(manifest, dict) else {}


def _make_broken_error(path: Path, why: str) -> AboardError:
    return AboardError(run_records.BUNDLE_BROKEN, f"{path} is not a readable bundle: {escape_text(why)}")
