"""Which packages a site-packages directory has, by their RECORD, and whether all of their files are there."""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Iterator

from aboard.agent import frames

RECORD = "RECORD"
# Metadata of a package that is being installed or removed: pip and importlib ignore such names.
PENDING = "~"
_METADATA = (".dist-info", ".egg-info", ".egg-link")
_NAME_AND_VERSION = re.compile(r"(.+?)-([^-]+)(?:-py[0-9][0-9.]*)?$")


def normalize_name(name: str) -> str:
    """The name by which pip compares packages."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_metadata_name(name: str) -> tuple[str, str] | None:
    """The package and version that a metadata directory is named after; None for any other name."""
    stem, ending = os.path.splitext(name.lstrip(PENDING))
    if ending not in _METADATA:
        return None
    parts = _NAME_AND_VERSION.match(stem)
    return (normalize_name(parts.group(1)), parts.group(2)) if parts else (normalize_name(stem), "")


def describe_packages(site: str) -> dict[str, frames.Message]:
    """Each package's version, the hash of its RECORD and how many of its files are missing or have another size.

    The files of pending metadata are missing under their final name, so an interrupted installation is found.
    """
    packages: dict[str, frames.Message] = {}
    for name in sorted(list_names(site), key=lambda name: (name.startswith(PENDING), name)):
        parsed = parse_metadata_name(name)
        if parsed is None:
            continue
        if parsed[0] in packages:
            packages[parsed[0]]["broken"] += 1
            continue
        record = _read_record(os.path.join(site, name))
        packages[parsed[0]] = {
            "version": parsed[1],
            "record": hashlib.sha256(record).hexdigest() if record else "",
            "broken": sum(not _is_intact(site, *row) for row in _parse_record(record)),
        }
    return packages


def find_metadata(site: str, package: str) -> list[str]:
    """The metadata directories of a package, those of interrupted installations included."""
    return [name for name in list_names(site) if (parse_metadata_name(name) or ("",))[0] == package]


def list_recorded_paths(folder: str) -> list[str]:
    """The files that a metadata directory's RECORD lists, relative to site-packages."""
    return [path for path, _size in _parse_record(_read_record(folder))]


def list_names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read_record(folder: str) -> bytes:
    try:
        with open(os.path.join(folder, RECORD), "rb") as file:
            return file.read()
    except OSError:
        return b""


def _parse_record(record: bytes) -> Iterator[tuple[str, str]]:
    for row in csv.reader(record.decode("utf-8", "surrogateescape").splitlines()):
        if row:
            yield row[0], row[2] if len(row) > 2 else ""  # noqa: PLR2004 - path, hash and size


def _is_intact(site: str, path: str, size: str) -> bool:
    try:
        found = os.stat(os.path.join(site, path)).st_size
    except OSError:
        # Compiled files come and go.
        return path.endswith(".pyc")
    return not size or str(found) == size or path.endswith(".pyc")
