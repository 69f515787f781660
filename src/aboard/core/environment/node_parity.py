"""Decides how a node's virtual environment differs from the head's, and which interpreter it can be based on."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from aboard.core.decoding import MaxLength
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass

_Text = Annotated[str, MaxLength(200)]
_Path = Annotated[Untrusted, MaxLength(4096)]
_MANYLINUX = re.compile(r"manylinux(?:_(\d+)_(\d+)|(1|2010|2014))_")
_MANYLINUX_NAMES = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}
_VERSION_PARTS = 2


@dataclass(frozen=True, kw_only=True)
class InterpreterDescription:
    """What an interpreter says about itself; `packages` are those outside of its environment, by version."""

    executable: _Path
    version: _Text
    minor: _Text
    abi: _Text
    machine: _Text
    glibc: _Text
    base: _Path
    site: _Path
    packages: Annotated[Mapping[_Text, _Text], MaxLength(20_000)]


@dataclass(frozen=True, kw_only=True)
class InstalledPackage:
    """A package on a node: its version, the hash of its RECORD, and how many of its files are missing or differ."""

    version: _Text
    record: _Text
    broken: int


@dataclass(frozen=True, kw_only=True)
class PackageChanges:
    """What makes a node's environment equal to the head's."""

    install: tuple[str, ...]
    remove: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.install or self.remove)


def plan_package_changes(wanted: Mapping[str, str], found: Mapping[str, InstalledPackage]) -> PackageChanges:
    """Compares by the hash of RECORD; `wanted` has it for each package of the head."""
    return PackageChanges(
        install=tuple(
            name
            for name, record in wanted.items()
            if name not in found or found[name].record != record or found[name].broken
        ),
        remove=tuple(name for name in found if name not in wanted),
    )


def choose_base_interpreter(
    head: InterpreterDescription, offered: Sequence[InterpreterDescription]
) -> InterpreterDescription | None:
    """The one with the head's version if there is one, else the first of the same minor version and platform."""
    fitting = [each for each in offered if find_platform_mismatch(head, each) is None and each.minor == head.minor]
    return next((each for each in fitting if each.version == head.version), next(iter(fitting), None))


def find_platform_mismatch(head: InterpreterDescription, node: InterpreterDescription) -> str | None:
    """Why compiled packages of the head can't run on the node."""
    if node.machine != head.machine:
        return f"is {node.machine}, but the head is {head.machine}"
    if node.minor == head.minor and node.abi != head.abi:
        return f"has a Python built for {node.abi}, but the head's is built for {head.abi}"
    return None


def find_needed_glibc(wheels: Iterable[Iterable[str]]) -> tuple[int, int]:
    """The oldest glibc on which every wheel runs, by the platform tags of each; (0, 0) if no tag names one."""
    needs = [(0, 0)]
    for platforms in wheels:
        found = [
            (int(match[1]), int(match[2])) if match[1] else _MANYLINUX_NAMES[match[3]]
            for match in map(_MANYLINUX.match, platforms)
            if match
        ]
        needs += [min(found)] if found else []
    return max(needs)


def parse_glibc(text: str) -> tuple[int, int] | None:
    """None where there is none, as on Alpine."""
    parts = text.split(".")[:_VERSION_PARTS]
    return (int(parts[0]), int(parts[1])) if len(parts) == _VERSION_PARTS and all(map(str.isdecimal, parts)) else None


def find_base_differences(head: Mapping[str, str], node: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """The packages of the head's base interpreter that the node's lacks or has in another version, with both."""
    return {name: (version, node.get(name)) for name, version in head.items() if node.get(name) != version}
