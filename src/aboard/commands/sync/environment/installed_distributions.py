"""Reads which distributions are installed in the head's virtual environment, and the files of each."""

import ast
import csv
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache, partial
from importlib.metadata import PathDistribution
from pathlib import Path

from aboard.agent.packages.installed_packages import PENDING, RECORD, normalize_name, parse_metadata_name
from aboard.core.decoding import parse_json
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import environment_sync
from aboard.lazy_dataclass import dataclass

_DIRECT_URL = "direct_url.json"
# Files beside a project's packages that are no part of what it installs.
_PROJECT_FILES = {"setup.py", "conftest.py", "noxfile.py", "tasks.py"}
_NAME, _VERSION = re.compile(r"[\w.-]{1,80}", re.ASCII), re.compile(r"[\w.+!-]{1,80}", re.ASCII)
_MODULE = re.compile(r"\w+(\.\w+)*+")
# What virtualenv and uv add to an environment for themselves.
_TOOL_FILES = frozenset({"__pycache__", "_virtualenv.py", "_virtualenv.pth"})


@dataclass(frozen=True, kw_only=True)
class PackagedFile:
    """A file on disk and its name in a wheel."""

    name: str
    source: Path


@dataclass(frozen=True, kw_only=True)
class InstalledDistribution:
    """One distribution; `project` is the directory of an editable installation."""

    package: str
    name: str
    version: str
    metadata: str
    files: tuple[PackagedFile, ...]
    top_names: frozenset[str]
    project: str = ""


@dataclass(frozen=True, kw_only=True)
class EnvironmentContents:
    """The distributions of an environment; `loose` are files of site-packages that belong to none of them."""

    distributions: tuple[InstalledDistribution, ...]
    loose: tuple[str, ...]


def read_environment(prefix: Path, site: Path) -> EnvironmentContents:
    """Every distribution that is installed in the environment itself; raises if one can't be packed."""
    distributions: list[InstalledDistribution] = []
    recordless: list[str] = []
    projects: list[str] = []
    for metadata in sorted(path for path in site.iterdir() if not path.name.startswith(PENDING)):
        if parse_metadata_name(metadata.name) is None and metadata.suffix != ".egg":
            continue
        try:
            distributions.append(_read_distribution(prefix, site, metadata))
        except _NoRecordError:
            recordless.append((parse_metadata_name(metadata.name) or (metadata.stem.partition("-")[0],))[0])
        except _NoPackagesError as error:
            projects.append(str(error))
    python = prefix / "bin/python"
    if projects:
        seen = f"no package was found for the editable installation of {', '.join(map(escape_text, projects))}"
        raise AboardError(environment_sync.PACKAGE, seen, "editable", python=python, projects=projects)
    if recordless:
        seen = (
            f"no RECORD lists the files of {', '.join(map(escape_text, recordless))} in {escape_text(str(site), 300)}"
        )
        raise AboardError(environment_sync.PACKAGE, seen, "reinstall", python=python, names=recordless)
    return EnvironmentContents(distributions=tuple(distributions), loose=tuple(_find_loose_files(site, distributions)))


class _NoRecordError(Exception):
    pass


class _NoPackagesError(Exception):
    pass


def _read_distribution(prefix: Path, site: Path, metadata: Path) -> InstalledDistribution:
    try:
        # Not by searching the text: the description below the headers may have lines such as `Version: 30`.
        headers = PathDistribution(metadata).metadata
        with (metadata / RECORD).open(encoding="utf-8", newline="") as file:
            paths = [row[0] for row in csv.reader(file) if row]
        name, version = headers["Name"] or "", headers["Version"] or ""
    except (OSError, KeyError, UnicodeDecodeError, csv.Error):
        raise _NoRecordError from None
    # The parts of METADATA's Name and Version that decide a file name must not lead anywhere else.
    if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version) or any("\0" in path for path in paths):
        raise _NoRecordError
    project = _read_editable_project(metadata)
    data = f"{metadata.name.removesuffix('.dist-info')}.data"
    files = list(_list_recorded_files(prefix, site, paths, data))
    if project is not None:
        own = {f"{metadata.name}/{_DIRECT_URL}"}
        links = [file for file in files if _is_editable_link(file.name)]
        packages = list(_list_project_files(normalize_name(name), metadata, links))
        if not packages:
            raise _NoPackagesError(project or name)
        names = own | {file.name for file in (*links, *packages)}
        files = [*(file for file in files if file.name not in names), *packages]
    return InstalledDistribution(
        package=normalize_name(name),
        name=name,
        version=version,
        metadata=metadata.name,
        files=tuple(sorted(files, key=lambda file: file.name)),
        top_names=frozenset(path.partition("/")[0] for path in paths),
        project=project or "",
    )


def _list_recorded_files(prefix: Path, site: Path, paths: Iterable[str], data: str) -> Iterator[PackagedFile]:
    """The recorded files that exist, under their names in a wheel; compiled files and RECORD itself are left out."""
    # An environment has some 60,000 files: directories are resolved once, and names are plain strings.
    name_folder = cache(partial(_name_folder, Path(os.path.realpath(prefix)), Path(os.path.realpath(site)), data))
    own = f"{data.removesuffix('.data')}.dist-info/"
    for path in dict.fromkeys(paths):
        folder, _, name = f"{site}/{path}".rpartition("/")
        inside = None if folder.endswith("/__pycache__") else name_folder(folder)
        # Nothing outside of the environment is part of it.
        if inside is None or (name == RECORD and inside == own):
            continue
        source = Path(f"{folder}/{name}")
        if source.is_file():
            yield PackagedFile(name=inside + name, source=source)


def _name_folder(prefix: Path, site: Path, data: str, folder: str) -> str | None:
    """What the names of a directory's files start with in a wheel; None for a directory that is not in it."""
    real = Path(os.path.realpath(folder))
    if real.is_relative_to(site):
        return "" if real == site else f"{real.relative_to(site)}/"
    if real == prefix / "bin":
        return f"{data}/scripts/"
    if real.is_relative_to(prefix):
        return f"{data}/data/{real.relative_to(prefix)}/".replace("/./", "/")
    return None


def _read_editable_project(metadata: Path) -> str | None:
    """The directory of an editable installation; None for any other."""
    try:
        origin = parse_json((metadata / _DIRECT_URL).read_bytes())
        editable = origin["dir_info"]["editable"] is True
        url = str(origin["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url.removeprefix("file://") if editable else None


def _is_editable_link(name: str) -> bool:
    """Whether a file only makes the project's directory importable: a .pth file or setuptools' finder."""
    return "/" not in name and (name.endswith(".pth") or name.startswith(("__editable__", "_editable_")))


def _list_project_files(package: str, metadata: Path, links: Iterable[PackagedFile]) -> Iterator[PackagedFile]:
    for link in links:
        text = link.source.read_text("utf-8", "replace")
        if link.name.endswith(".py"):
            mapping = _parse_finder_mapping(text)
            for module, path in ((module, mapping[module]) for module in mapping if _MODULE.fullmatch(module)):
                yield from _list_module_files(module.replace(".", "/"), Path(path))
            continue
        for line in text.splitlines():
            folder = Path(line.strip())
            if line.strip() and not line.startswith(("#", "import ", "import\t")) and folder.is_absolute():
                for found in _find_project_modules(package, metadata, folder):
                    yield from _list_module_files(found.stem if found.is_file() else found.name, found)


def _parse_finder_mapping(source: str) -> dict[str, str]:
    """The modules and their paths in the finder that setuptools writes."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "MAPPING" for target in targets):
            try:
                mapping = ast.literal_eval(node.value)  # type: ignore[attr-defined]
            except ValueError:
                return {}
            return {str(module): str(path) for module, path in mapping.items()} if isinstance(mapping, dict) else {}
    return {}


def _find_project_modules(package: str, metadata: Path, folder: Path) -> list[Path]:
    """The packages and modules of a project's directory that belong to the distribution.

    The directory may also hold tests, data and this environment itself, so a known name comes first.
    """
    paths = (
        [path for path in sorted(folder.iterdir()) if path.is_dir() or path.suffix == ".py"] if folder.is_dir() else []
    )
    try:
        listed = set((metadata / "top_level.txt").read_text("utf-8").split())
    except OSError:
        listed = set()
    known = [path for path in paths if path.stem in listed or normalize_name(path.stem) == package]
    return known or [path for path in paths if _is_module(path)]


def _is_module(path: Path) -> bool:
    if path.is_dir():
        return (path / "__init__.py").is_file()
    return path.name not in _PROJECT_FILES


def _list_module_files(name: str, path: Path) -> Iterator[PackagedFile]:
    if path.is_file():
        yield PackagedFile(name=f"{name}{path.suffix}", source=path)
    elif path.with_suffix(".py").is_file() and not path.exists():
        yield PackagedFile(name=f"{name}.py", source=path.with_suffix(".py"))
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(each for each in folders if each != "__pycache__" and not each.startswith("."))
        for each in sorted(names):
            source = Path(folder, each)
            if source.is_file() and not each.endswith(".pyc"):
                yield PackagedFile(name=f"{name}/{source.relative_to(path)}", source=source)


def _find_loose_files(site: Path, distributions: Iterable[InstalledDistribution]) -> Iterator[str]:
    owned = _TOOL_FILES.union(*(each.top_names for each in distributions))
    for path in sorted(site.iterdir()):
        if not path.name.startswith(PENDING) and parse_metadata_name(path.name) is None and path.name not in owned:
            yield path.name
