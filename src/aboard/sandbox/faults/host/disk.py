"""Faults: a full disk, a missing path."""

import os
from typing import Annotated, ClassVar

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.root_commands import TEMPORARY_STORE, run_script
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox

# A small file system with the same contents replaces the directory. Its size is the used space plus the requested free
# space, so no filler file is needed.
_FILL = """
if [ -e "$1/mark" ]; then exit 0; fi
mkdir -p "$1/disk"; chmod 700 "$1"
mount -t tmpfs disk "$1/disk"
cp -a "$2/." "$1/disk/"
chown --reference="$2" "$1/disk"; chmod --reference="$2" "$1/disk"
used=$(df -B1 --output=used "$1/disk" | tail -n 1)
page=$(getconf PAGESIZE)
mount -o remount,size=$((used + $3 * 1048576 + (used + $3 > 0 ? 0 : page))) "$1/disk"
if [ $((used + $3)) -eq 0 ]; then head -c "$page" /dev/zero > "$1/disk/.full"; fi
touch "$1/mark"
mount --move "$1/disk" "$2"
"""
# Files written in the meantime are kept: the contents of the full disk are copied back to the directory.
_FREE = """
if [ -e "$1/mark" ] && mountpoint -q "$2"; then
    mkdir -p "$1/below"
    mount --bind / "$1/below"
    rm -f "$2/.full"
    find "$1/below$2" -mindepth 1 -delete
    cp -a "$2/." "$1/below$2/"
    umount "$1/below"
    umount -l "$2"
fi
if mountpoint -q "$1/disk"; then umount "$1/disk"; fi
rm -rf "$1"
"""
# A mount point becomes empty, as when an NFS mount failed at boot; any other path disappears.
_HIDE = """
if [ -e "$1/moved" ] || [ -L "$1/moved" ] || mountpoint -q "$1/mount"; then exit 0; fi
mkdir -p "$1"; chmod 700 "$1"
if mountpoint -q "$2"; then mkdir -p "$1/mount"; mount --move "$2" "$1/mount"; else mv -T "$2" "$1/moved"; fi
"""
_SHOW = """
if [ -e "$1/moved" ] || [ -L "$1/moved" ]; then mv -T "$1/moved" "$2"; fi
if [ -d "$1/mount" ] && mountpoint -q "$1/mount"; then mount --move "$1/mount" "$2"; fi
rm -rf "$1"
"""


@dataclass(frozen=True, kw_only=True)
class DiskFull(Fault):
    """The disk that holds a directory is full: `No space left on device`."""

    name: ClassVar[str] = "disk-full"
    path: Annotated[str, "The directory."] = "/private"
    free_mib: Annotated[int, "Free space, in MiB."] = 0

    def check(self, box: Sandbox, host: Host) -> None:
        _require_path(host, self.path, "-d", "no directory")
        if host.run(["mountpoint", "-q", self.path]).returncode == 0:
            raise SandboxError(
                sandbox.FAULT_OPTION,
                f"{self.path} on {host.name} is already a separate file system",
                "disk-full",
                node=host.name,
            )

    def inject(self, box: Sandbox, host: Host) -> None:
        run_script(host, _FILL, f"{TEMPORARY_STORE}/{self.key}", self.path, str(self.free_mib))

    def heal(self, box: Sandbox, host: Host) -> None:
        run_script(host, _FREE, f"{TEMPORARY_STORE}/{self.key}", self.path)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset({self.path})


@dataclass(frozen=True, kw_only=True)
class PathMissing(Fault):
    """A file or directory is missing; a mount point is empty, as if nothing were mounted."""

    name: ClassVar[str] = "path-missing"
    survives_power: ClassVar[bool] = True
    path: Annotated[str, "The path, such as /shared."]

    def check(self, box: Sandbox, host: Host) -> None:
        _require_path(host, self.path, "-e", "nothing")

    def inject(self, box: Sandbox, host: Host) -> None:
        run_script(host, _HIDE, self.store, self.path)

    def heal(self, box: Sandbox, host: Host) -> None:
        moved = host.run(["test", "-e", f"{self.store}/moved"], root=True).returncode == 0
        if moved and host.run(["test", "-e", self.path], root=True).returncode == 0:
            raise SandboxError(
                sandbox.PATH_TAKEN,
                f"{self.path} on {host.name} cannot be restored: something new is there",
                node=host.name,
                path=self.path,
            )
        run_script(host, _SHOW, self.store, self.path)

    def reapply(self, box: Sandbox, host: Host) -> None:
        # A boot mounts it again.
        self.inject(box, host)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset({self.path})


def _require_path(host: Host, path: str, test: str, what: str) -> None:
    if not path.startswith("/") or os.path.normpath(path) != path or path == "/":
        raise SandboxError(sandbox.FAULT_OPTION, f"{path!r} is not an absolute path below /", "path")
    if host.run(["test", test, path], root=True).returncode != 0:
        raise SandboxError(
            sandbox.FAULT_OPTION, f"{host.name} has {what} at {path}", "nothing", node=host.name, path=path
        )
