"""Slurm inside one host: what it finds on its disk at first boot, and what runs after every boot."""

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

from aboard.core.size import MIB
from aboard.diagnoses import SandboxError, sandbox
from aboard.sandbox.files import ROOT_PATH
from aboard.sandbox.layout import HEAD, Layout, Place
from aboard.sandbox.slurm import conf

MUNGE = "munge"
_MUNGE_KEY = Path("/etc/munge/munge.key")
_START_TIMEOUT = 30.0
_LOG_LINES = 5


def install(layout: Layout, *, secret: str) -> None:
    """Put the configuration and empty directories on this host's disk; `secret` is one that all hosts share."""
    munge = pwd.getpwnam(MUNGE)
    # New and empty, whatever the machine has there: its keys, its jobs and its plugins are not ours.
    for directory in ("/etc/munge", "/var/lib/munge", "/var/log/munge"):
        _make_empty(Path(directory), mode=0o700, owner=munge)
    for directory in ("/etc/slurm", conf.LOGS, conf.STATE, conf.SPOOL):
        _make_empty(Path(directory), mode=0o755)
    _MUNGE_KEY.write_bytes(hashlib.sha512(b"munge" + secret.encode()).digest())
    _MUNGE_KEY.chmod(0o400)
    os.chown(_MUNGE_KEY, munge.pw_uid, munge.pw_gid)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
    cpus = len(os.sched_getaffinity(0))
    Path("/etc/slurm/slurm.conf").write_text(conf.slurm_conf(layout, cpus=cpus, memory=memory))
    Path("/etc/slurm/cgroup.conf").write_text(conf.CGROUP_CONF)
    Path("/etc/slurm/gres.conf").write_text(conf.gres_conf(layout))


def start(place: Place, layout: Layout) -> None:
    """Start this host's daemons; each goes to the background by itself."""
    munge = pwd.getpwnam(MUNGE)
    _make_empty(Path("/run/munge"), mode=0o755, owner=munge)
    _start(place, "munged", user=munge)
    if place.name == HEAD:
        return
    for file in conf.gpu_files(layout):
        os.mknod(file, stat.S_IFCHR | 0o666, Path("/dev/null").stat().st_rdev)
    if place.name == conf.CONTROLLER:
        _start(place, "slurmctld")
    _start(place, "slurmd")


def _make_empty(directory: Path, *, mode: int, owner: pwd.struct_passwd | None = None) -> None:
    if directory.is_symlink() or directory.is_file():
        directory.unlink()
    elif directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    directory.chmod(mode)
    if owner is not None:
        os.chown(directory, owner.pw_uid, owner.pw_gid)


def _start(place: Place, program: str, *, user: pwd.struct_passwd | None = None) -> None:
    try:
        done = subprocess.run(
            [program],
            # Nothing of the environment that `up` was typed in: SLURM_CONF in it would lead elsewhere.
            env={"PATH": ROOT_PATH},
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            extra_groups=[] if user else None,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_START_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise _trouble(place, program, f"isn't up after {_START_TIMEOUT:.0f} s") from None
    if done.returncode != 0:
        raise _trouble(place, program, done.stderr.strip() or _last_words(program, done.returncode))


def _last_words(program: str, code: int) -> str:
    log = Path(conf.LOGS, f"{program}.log")
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"exit code {code}; its log ends with:", *lines[-_LOG_LINES:]])


def _trouble(place: Place, program: str, seen: str) -> SandboxError:
    return SandboxError(sandbox.SLURM, f"{program} on {place.name}: {seen}", "daemon")
