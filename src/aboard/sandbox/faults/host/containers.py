"""Faults of containers: an image that is missing or differs, no subordinate ids, no runtime."""

from typing import Annotated, ClassVar, Literal

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.containers.image_files import ARCHIVE, IMAGES, SIF
from aboard.sandbox.faults import file_edits
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.root_commands import run_script
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup.system_files import CREW
from aboard.sandbox.sandbox import Sandbox

_IMAGE = "train"
_SUBORDINATE_FILES = ("/etc/subuid", "/etc/subgid")
# $1 is the store, $2 a file. Only its bytes change: what it contains stays the same, and works.
_CHANGE = """
[ -e "$1/taken" ] && exit 0
mkdir -p "$1"; chmod 700 "$1"
cp -a "$2" "$2.new"; echo another version >> "$2.new"
mv -T "$2" "$1/taken"; mv -T "$2.new" "$2"
"""
_TAKE = """
mkdir -p "$1"; chmod 700 "$1"
store=$1; shift
for path in "$@"; do if [ -e "$path" ]; then mkdir -p "$store${path%/*}"; mv -T "$path" "$store$path"; fi; done
"""
_GIVE_BACK = """
store=$1; shift
for path in "$@"; do if [ -e "$store$path" ]; then mv -fT "$store$path" "$path"; fi; done
rm -rf "$store"
"""
_RESTORE = '[ ! -e "$1/taken" ] || mv -fT "$1/taken" "$2"; rm -rf "$1"'
# Podman's images belong to the user. An archive without a history has another id.
_CHANGE_STORED = """
tar -xOf "$1" layer.tar > ~/.other.tar
path=$(podman image inspect --format '{{index .Config.Env 0}}' "$2")
podman import --quiet --change "ENV $path" --change LABEL=version=other ~/.other.tar "localhost/$2:latest" >/dev/null
rm ~/.other.tar
"""
_REMOVE_STORED = 'if podman image exists "$2"; then podman rmi --force "$2" >/dev/null; fi'
_RESTORE_STORED = 'podman rmi --force "$2" >/dev/null 2>&1 || true; podman load --quiet --input "$1" >/dev/null'


@dataclass(frozen=True, kw_only=True)
class ContainerFault(Fault):
    """A fault of hosts that are prepared for containers."""

    survives_power: ClassVar[bool] = True

    def check(self, box: Sandbox, host: Host) -> None:
        if not box.layout.containers:
            seen = f"the hosts of {box.name!r} are not prepared for containers"
            raise SandboxError(sandbox.FAULT_OPTION, seen, "containers", name=box.name)


@dataclass(frozen=True, kw_only=True)
class ImageFault(ContainerFault):
    """A fault of both images, Apptainer's file and Podman's copy: scripts that break each, and restore the file."""

    resources: ClassVar[frozenset[str]] = frozenset({"image"})
    scripts: ClassVar[tuple[str, str, str]]

    def inject(self, box: Sandbox, host: Host) -> None:
        run_script(host, self.scripts[0], self.store, str(IMAGES / SIF))
        _run_as_crew(host, self.scripts[1])

    def heal(self, box: Sandbox, host: Host) -> None:
        run_script(host, self.scripts[2], self.store, str(IMAGES / SIF))
        _run_as_crew(host, _RESTORE_STORED)


@dataclass(frozen=True, kw_only=True)
class ImageDiffers(ImageFault):
    """The image of containers is another version than on other hosts."""

    name: ClassVar[str] = "image-differs"
    scripts: ClassVar[tuple[str, str, str]] = (_CHANGE, _CHANGE_STORED, _RESTORE)


@dataclass(frozen=True, kw_only=True)
class ImageMissing(ImageFault):
    """The image of containers is not on the host."""

    name: ClassVar[str] = "image-missing"
    scripts: ClassVar[tuple[str, str, str]] = (_TAKE, _REMOVE_STORED, _GIVE_BACK)


@dataclass(frozen=True, kw_only=True)
class NoSubordinateIds(ContainerFault):
    """The user has no subordinate ids, which rootless Podman needs."""

    name: ClassVar[str] = "no-subordinate-ids"

    def inject(self, box: Sandbox, host: Host) -> None:
        for path in _SUBORDINATE_FILES:
            file_edits.edit_lines(host, self._name_edit(path), path, drop=lambda line: line.startswith(f"{CREW}:"))
        _forget_mapping(host)

    def heal(self, box: Sandbox, host: Host) -> None:
        for path in _SUBORDINATE_FILES:
            file_edits.undo_edit(host, self._name_edit(path))
        _forget_mapping(host)

    def _name_edit(self, path: str) -> str:
        return f"{self.key}-{path.rpartition('/')[2]}"


@dataclass(frozen=True, kw_only=True)
class NoRuntime(ContainerFault):
    """The program that runs containers is not installed."""

    name: ClassVar[str] = "no-runtime"
    runtime: Annotated[Literal["apptainer", "podman"], "The program."] = "apptainer"

    def inject(self, box: Sandbox, host: Host) -> None:
        run_script(host, _TAKE, self.store, *self._list_paths())

    def heal(self, box: Sandbox, host: Host) -> None:
        run_script(host, _GIVE_BACK, self.store, *self._list_paths())

    def _list_paths(self) -> list[str]:
        names = ("apptainer", "singularity") if self.runtime == "apptainer" else ("podman",)
        return [f"{folder}/{name}" for folder in ("/usr/bin", "/usr/local/bin") for name in names]


def _run_as_crew(host: Host, script: str) -> None:
    result = host.run(["sh", "-euc", script, "sh", str(IMAGES / ARCHIVE), _IMAGE], timeout=60)
    if result.returncode != 0:
        raise SandboxError(sandbox.FAULT, f"{host.name}: {result.stderr.strip()}")


def _forget_mapping(host: Host) -> None:
    """Ends the process that holds the user's namespace: Podman then reads the files again."""
    host.run(["podman", "system", "migrate"], timeout=60)
