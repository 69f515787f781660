"""Faults: a python3 that is missing, old, from another environment, or that prints garbage."""

import shlex
from importlib import resources
from typing import Annotated, ClassVar, Literal

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.root_commands import run_as_root, run_script
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox

# $1 is the store; every program whose name is that of a Python is moved there, under its full path.
_TAKE_ALL = """
mkdir -p "$1"; chmod 700 "$1"
for path in /usr/local/bin/python* /usr/bin/python* /bin/python*; do
    case "${path##*/}" in python|python[0-9]|python[0-9].[0-9]|python[0-9].[0-9][0-9]) ;; *) continue;; esac
    [ -e "$path" ] || [ -L "$path" ] || continue
    mkdir -p "$1/taken${path%/*}"
    mv -T "$path" "$1/taken$path"
done
"""
_TAKE_ONE = (
    'mkdir -p "$1/taken${2%/*}"; chmod 700 "$1"; [ -L "$1/taken$2" ] || [ -e "$1/taken$2" ] || mv -T "$2" "$1/taken$2"'
)
_GIVE_BACK = """
[ -d "$1/taken" ] || exit 0
cd "$1/taken"
find . ! -type d | while read -r path; do mv -fT "$path" "${path#.}"; done
cd /
rm -rf "$1"
"""
_ANSWERS = {
    "garbage": "head -c 1048576 /dev/urandom",
    "endless-line": "exec tr '\\0' x < /dev/zero",
    "silence": "exec sleep infinity",
}


@dataclass(frozen=True, kw_only=True)
class _PythonFault(Fault):
    survives_power: ClassVar[bool] = True
    resources: ClassVar[frozenset[str]] = frozenset({"python3"})

    def heal(self, box: Sandbox, host: Host) -> None:
        run_script(host, _GIVE_BACK, self.store)

    def _replace(self, host: Host, program: str) -> None:
        """Replaces the python3 on a login's PATH with a script."""
        path = _find_python3(host)
        run_script(host, _TAKE_ONE, self.store, path)
        run_as_root(host, "sh", "-euc", 'cat > "$1"; chmod 755 "$1"', "sh", path, text=program)


@dataclass(frozen=True, kw_only=True)
class NoPython(_PythonFault):
    """The host has no Python at all."""

    name: ClassVar[str] = "no-python"

    def inject(self, box: Sandbox, host: Host) -> None:
        run_script(host, _TAKE_ALL, self.store)


@dataclass(frozen=True, kw_only=True)
class OldPython(_PythonFault):
    """python3 is an old version."""

    name: ClassVar[str] = "old-python"
    version: Annotated[str, "The version that it reports."] = "3.6.15"

    def inject(self, box: Sandbox, host: Host) -> None:
        self._replace(host, _format_shim(_find_real_python(host), version=self.version))


@dataclass(frozen=True, kw_only=True)
class OtherPython(_PythonFault):
    """python3 belongs to another environment: a module is missing, or it is another program."""

    name: ClassVar[str] = "other-python"
    without: Annotated[str | None, "Modules that are missing, such as torch or torch,yaml."] = None
    program: Annotated[str | None, "The program to run instead."] = None

    def check(self, box: Sandbox, host: Host) -> None:
        if (self.without is None) == (self.program is None):
            raise SandboxError(
                sandbox.FAULT_OPTION, "no difference was selected: pass either --without or --program", "other-python"
            )
        if self.program is not None and host.run(["test", "-x", self.program]).returncode != 0:
            raise SandboxError(
                sandbox.FAULT_OPTION,
                f"the user on {host.name} cannot run {self.program}",
                "program",
                node=host.name,
                program=self.program,
            )

    def inject(self, box: Sandbox, host: Host) -> None:
        if self.program is None:
            self._replace(host, _format_shim(_find_real_python(host), without=str(self.without)))
        else:
            self._replace(host, f'#!/bin/sh\nexec {shlex.quote(self.program)} "$@"\n')


@dataclass(frozen=True, kw_only=True)
class HostilePython(_PythonFault):
    """python3 starts but never gives a usable answer."""

    name: ClassVar[str] = "hostile-python"
    answer: Annotated[Literal["garbage", "endless-line", "silence"], "What it prints."] = "garbage"

    def inject(self, box: Sandbox, host: Host) -> None:
        self._replace(host, f"#!/bin/sh\n{_ANSWERS[self.answer]}\n")


def _find_python3(host: Host) -> str:
    found = host.run(["sh", "-c", "command -v python3"])
    if found.returncode != 0:
        raise SandboxError(sandbox.FAULT, f"{host.name} has no python3 to replace")
    return found.stdout.strip()


def _find_real_python(host: Host) -> str:
    return run_as_root(host, "readlink", "-f", _find_python3(host)).strip()


def _format_shim(real: str, *, version: str = "", without: str = "") -> str:
    """The source of python_shim.py with a call that says what to pretend."""
    source = resources.files("aboard.sandbox.faults.host").joinpath("python_shim.py").read_text("utf-8")
    return f"#!{real} -S\n{source}\nrun_as_another({version!r}, {without!r})\n"
