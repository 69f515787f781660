"""Packs an installed distribution back into a wheel, the same bytes for the same files; packed wheels are cached."""

import hashlib
import io
import json
import os
import re
import stat
import time
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache as cache_results
from pathlib import Path
from typing import Any, BinaryIO

from aboard.agent.packages.installed_packages import RECORD, parse_metadata_name
from aboard.agent.packages.wheel_install import SHEBANG, WheelLayout, format_record
from aboard.agent.private_folders import make_private_folder
from aboard.commands.sync.environment.installed_distributions import InstalledDistribution, PackagedFile
from aboard.content_hash_cache import make_changed_error, read_file_stamp
from aboard.core.decoding import parse_json, try_decode
from aboard.durable_files import compute_sha256
from aboard.lazy_dataclass import dataclass

# Part of the cache's key: a change of the packing makes older wheels stale.
_FORMAT = 1
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_BLOCK = 1024 * 1024
# Of the 255 of a file name, what the package's name and version leave.
_TAG_CHARACTERS = 60
_UNUSED_SECONDS = 30 * 86400
_DEFAULT_WHEEL = b"Wheel-Version: 1.0\nGenerator: aboard\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_TAG = re.compile(r"^Tag: *([\w.]+)-([\w.]+)-([\w.]+)\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class PackedWheel:
    """A wheel in the cache; `record` is the hash of the RECORD that its installation writes on a node.

    With `scripts`, the record depends on the environment's path, which they name. Before it is packed, a wheel has
    neither file nor record.
    """

    package: str
    version: str
    file: str
    bytes: int
    sha256: str
    record: str
    installed_bytes: int
    platforms: tuple[str, ...]
    scripts: bool = True


def find_packed_wheel(distribution: InstalledDistribution, cache: Path, prefix: Path, site: str) -> PackedWheel:
    """The wheel in the cache if it is still good; otherwise what is known before it is packed."""
    place = _WheelPlace(distribution, cache, prefix, site)
    known = place.load()
    if known is not None:
        return known
    size = sum(file.source.stat().st_size for file in distribution.files)
    named = parse_metadata_name(distribution.metadata)
    return PackedWheel(
        package=distribution.package,
        version=(named and named[1]) or distribution.version,
        file="",
        bytes=size,
        sha256="",
        record="",
        installed_bytes=size,
        platforms=place.platforms,
    )


@cache_results
def compute_record(wheel: Path, prefix: str, site: str) -> str:
    """The hash of the RECORD that the wheel's installation writes in an environment with this path."""
    with zipfile.ZipFile(wheel) as archive:
        return hashlib.sha256(WheelLayout(archive, prefix, site).build_record()).hexdigest()


class _WheelPlace:
    """The name of a wheel in the cache, which changes with every file of the distribution."""

    def __init__(self, distribution: InstalledDistribution, cache: Path, prefix: Path, site: str) -> None:
        self._files = distribution.files
        self._stamps = self._read_stamps()
        key = json.dumps([_FORMAT, str(prefix), site, distribution.metadata, self._stamps])
        tags = _read_tags(distribution)
        self.platforms = tuple(sorted({platform for _, _, platform in tags}))
        stem = re.sub(r"[-_.]+", "_", distribution.name) + "-" + distribution.version.replace("-", "_")
        # As a build tag: pip accepts one that starts with a digit.
        self.path = cache / f"{stem}-0{hashlib.sha256(key.encode()).hexdigest()[:16]}-{_join_tags(tags)}.whl"
        self.about = self.path.with_name(f"{self.path.name}.json")

    def load(self) -> PackedWheel | None:
        known = _load_wheel(self.about)
        whole = known is not None and self.path.is_file() and self.path.stat().st_size == known.bytes
        return known if whole else None

    def require_unchanged(self) -> None:
        for name, stamp in self._read_stamps().items():
            if stamp != self._stamps[name]:
                raise make_changed_error(next(file.source for file in self._files if file.name == name))

    def _read_stamps(self) -> dict[str, list[Any]]:
        return {file.name: [*read_file_stamp(file.source), _is_executable(file)] for file in self._files}


def pack_distribution(distribution: InstalledDistribution, cache: Path, prefix: Path, site: str) -> PackedWheel:
    """Packs what changed since the last time; `site` is relative to the prefix."""
    make_private_folder(cache)
    place = _WheelPlace(distribution, cache, prefix, site)
    path, known = place.path, place.load()
    if known is not None:
        os.utime(place.about)
        return known
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            _write_wheel(distribution, file, prefix)
        with zipfile.ZipFile(draft) as archive:
            layout = WheelLayout(archive, str(prefix), site)
            installed = sum(archive.getinfo(name).file_size for name in layout.paths)
            record = hashlib.sha256(layout.build_record()).hexdigest()
            scripts = any(map(layout.is_script, layout.paths))
        place.require_unchanged()
        wheel = PackedWheel(
            package=distribution.package,
            version=distribution.version,
            file=path.name,
            bytes=draft.stat().st_size,
            sha256=compute_sha256(draft),
            record=record,
            installed_bytes=installed,
            platforms=place.platforms,
            scripts=scripts,
        )
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
    place.about.write_text(json.dumps(asdict(wheel)), "utf-8")
    return wheel


def _write_wheel(distribution: InstalledDistribution, target: BinaryIO, prefix: Path) -> None:
    rows = []
    wheel_file = f"{distribution.metadata}/WHEEL"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in distribution.files:
            with file.source.open("rb") as source:
                script = ".data/scripts/" in file.name
                content = io.BytesIO(_generalize_shebang(source.read(), prefix)) if script else source
                rows.append(_add_file(archive, file.name, content, executable=script or _is_executable(file)))
        if wheel_file not in {file.name for file in distribution.files}:
            rows.append(_add_file(archive, wheel_file, io.BytesIO(_DEFAULT_WHEEL), executable=False))
        name = f"{distribution.metadata}/{RECORD}"
        _add_file(archive, name, io.BytesIO(format_record([*sorted(rows), (name, "", "")])), executable=False)


def _add_file(archive: zipfile.ZipFile, name: str, source: BinaryIO, *, executable: bool) -> tuple[str, str, str]:
    """Adds a file and returns its row of RECORD."""
    info = zipfile.ZipInfo(name, _EARLIEST)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3
    info.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
    digest, size = hashlib.sha256(), 0
    with archive.open(info, "w", force_zip64=True) as target:
        while block := source.read(_BLOCK):
            digest.update(block)
            size += len(block)
            target.write(block)
    return name, f"sha256={urlsafe_b64encode(digest.digest()).rstrip(b'=').decode()}", str(size)


def _generalize_shebang(content: bytes, prefix: Path) -> bytes:
    """Replaces this environment's interpreter by the word that stands for any environment's."""
    paths = b"|".join(re.escape(os.fsencode(path)) for path in (prefix, os.path.realpath(prefix)))
    own = re.match(rb"#!(?:" + paths + rb")/bin/python[0-9.]*(?=\s)", content)
    return SHEBANG + content[own.end() :] if own else content


def _is_executable(file: PackagedFile) -> bool:
    return os.access(file.source, os.X_OK)


def _read_tags(distribution: InstalledDistribution) -> list[tuple[str, str, str]]:
    text = next((file.source for file in distribution.files if file.name == f"{distribution.metadata}/WHEEL"), None)
    return _TAG.findall(text.read_text("utf-8", "replace") if text else "") or [("py3", "none", "any")]


def _join_tags(tags: Iterable[tuple[str, str, str]]) -> str:
    """The tags as they are in a file name; only our own installer reads it, which needs none."""
    joined = "-".join(".".join(sorted(set(part))) for part in zip(*tags, strict=True))
    return joined if len(joined) <= _TAG_CHARACTERS else "py3-none-any"


def _load_wheel(about: Path) -> PackedWheel | None:
    try:
        return try_decode(PackedWheel, parse_json(about.read_bytes()))
    except (OSError, ValueError):
        return None


def remove_unused_wheels(cache: Path) -> None:
    """Removes the wheels that no sync has used for a month."""
    for about in cache.glob("*.whl.json"):
        if about.stat().st_mtime < time.time() - _UNUSED_SECONDS:
            about.with_suffix("").unlink(missing_ok=True)
            about.unlink(missing_ok=True)
