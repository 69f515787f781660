"""The programs and kernel features that a sandbox needs, and the packages and options that provide them."""

import errno
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass

_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "tini": "tini",
    "bash": "bash",
    "sleep": "coreutils",
}
_SLURM_PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "sinfo": "slurm-client",
}
_CONTAINER_PACKAGES = {
    "apptainer": "apptainer",
    "mksquashfs": "squashfs-tools",
    "podman": "podman",
    "crun": "crun",
    "catatonit": "catatonit",
    "newuidmap": "uidmap",
}
_KERNEL_PARTS = {
    "overlay": "CONFIG_OVERLAY_FS",
    "tmpfs": "CONFIG_TMPFS",
    "bridge": "CONFIG_BRIDGE",
    "veth": "CONFIG_VETH",
    "namespaces": "CONFIG_NET_NS, CONFIG_PID_NS, CONFIG_UTS_NS and CONFIG_IPC_NS",
}


@dataclass(frozen=True, kw_only=True)
class HostPrograms:
    """Paths of the programs that build a host."""

    sshd: str
    ssh_keygen: str
    ip: str
    tini: str
    sleep: str


def require_root(verb: str) -> None:
    """Raises unless we are root, which namespaces and mounts for other users require."""
    if os.geteuid() != 0:
        raise SandboxError(
            sandbox.ROOT,
            f"`aboard sandbox {verb}` needs root: a practice host has its own network, mounts and sshd, "
            "which only root can create. Your training still runs as an ordinary user",
            aboard=_find_aboard(),
            verb=verb,
        )


def _find_aboard() -> str:
    """The `aboard` command, with its path if sudo would not find it, as in a virtual environment."""
    beside = Path(sys.executable).parent / "aboard"
    return str(beside) if shutil.which("aboard", path=_SEARCH) is None and beside.exists() else "aboard"


def find_programs() -> HostPrograms:
    """Finds every program; raises one error with all missing packages."""
    if sys.platform != "linux":
        raise SandboxError(sandbox.LINUX, f"a sandbox is made of Linux namespaces; this is {sys.platform}")
    where = _find_or_refuse(_PACKAGES, _SEARCH)
    return HostPrograms(
        sshd=where["sshd"], ssh_keygen=where["ssh-keygen"], ip=where["ip"], tini=where["tini"], sleep=where["sleep"]
    )


def require_slurm(*, search: str = _SEARCH) -> None:
    """Checks for the programs of Slurm; raises one error with all missing packages."""
    _find_or_refuse(_SLURM_PACKAGES, search)


def require_containers(*, search: str = _SEARCH) -> None:
    """Checks for the programs of Apptainer and Podman; raises one error with all missing packages."""
    _find_or_refuse(_CONTAINER_PACKAGES, search)


def require_readable(source: Path) -> None:
    """Raises unless all users can read our source: the ordinary user of a host runs it in place."""
    for path in (source, source / "aboard", source / "aboard" / "__init__.py"):
        wanted = 0o5 if path.is_dir() else 0o4
        if path.stat().st_mode & wanted != wanted:
            raise SandboxError(
                sandbox.SOURCE,
                f"{path} can't be read by other users, so the ordinary user on a sandbox host could not run aboard",
                source=source,
            )


def build_kernel_part_error(part: str, seen: str) -> SandboxError:
    """The error for a missing kernel feature."""
    option = _KERNEL_PARTS[part]
    message = f"this kernel has no {part} ({option}): {seen}"
    if part in {"overlay", "bridge", "veth"}:
        return SandboxError(sandbox.KERNEL, message, "module", part=part)
    return SandboxError(sandbox.KERNEL, message, "boot", option=option)


def build_system_call_error(part: str, error: OSError) -> SandboxError:
    """The error for a system call that failed while the sandbox was built."""
    if error.errno in {errno.EPERM, errno.EACCES}:
        return SandboxError(
            sandbox.PRIVILEGES,
            f"root lacks permission here: {error.strerror}. In a container, root often lacks CAP_SYS_ADMIN",
        )
    if error.errno in {errno.ENODEV, errno.EINVAL, errno.ENOSYS}:
        return build_kernel_part_error(part, str(error.strerror))
    return SandboxError(sandbox.BUILD, str(error.strerror or error))


def _find_or_refuse(packages: Mapping[str, str], search: str) -> dict[str, str]:
    found = {name: shutil.which(name, path=search) for name in packages}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise SandboxError(
            sandbox.PROGRAM,
            f"not installed here: {', '.join(missing)}",
            packages=list(dict.fromkeys(packages[name] for name in missing)),
        )
    return {name: path for name, path in found.items() if path is not None}
