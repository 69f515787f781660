"""Slurm inside one host: files installed at first boot, daemons started at every boot."""

import hashlib
import os
import pwd
import stat
import subprocess
from pathlib import Path

from aboard.core.text.byte_sizes import MIB
from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.host_setup.root_filesystem import make_empty_directory
from aboard.sandbox.host_setup.system_files import ROOT_PATH
from aboard.sandbox.layout import HostAddress, SandboxLayout
from aboard.sandbox.slurm import config_files

MUNGE = "munge"
_MUNGE_KEY = Path("/etc/munge/munge.key")
_START_TIMEOUT = 30.0
_LOG_LINES = 5


def install_slurm(layout: SandboxLayout, *, secret: str) -> None:
    """Installs the configuration and empty directories on this host's disk; all hosts share `secret`."""
    munge = pwd.getpwnam(MUNGE)
    # New and empty, whatever the machine has there: its keys, jobs and plugins are not ours.
    for directory in ("/etc/munge", "/var/lib/munge", "/var/log/munge"):
        make_empty_directory(Path(directory), mode=0o700, owner=(munge.pw_uid, munge.pw_gid))
    for directory in ("/etc/slurm", config_files.LOGS, config_files.STATE, config_files.SPOOL):
        make_empty_directory(Path(directory), mode=0o755)
    _MUNGE_KEY.write_bytes(hashlib.sha512(b"munge" + secret.encode()).digest())
    _MUNGE_KEY.chmod(0o400)
    os.chown(_MUNGE_KEY, munge.pw_uid, munge.pw_gid)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
    cpus = len(os.sched_getaffinity(0))
    Path(config_files.SLURM_CONF).write_text(config_files.format_slurm_conf(layout, cpus=cpus, memory=memory))
    Path("/etc/slurm/cgroup.conf").write_text(config_files.CGROUP_CONF)
    Path("/etc/slurm/gres.conf").write_text(config_files.format_gres_conf(layout))


def start_daemons(host: HostAddress, layout: SandboxLayout) -> None:
    """Starts this host's daemons; each moves to the background itself."""
    munge = pwd.getpwnam(MUNGE)
    make_empty_directory(Path("/run/munge"), mode=0o755, owner=(munge.pw_uid, munge.pw_gid))
    _start_daemon(host, "munged", user=munge)
    if host.name == config_files.CONTROLLER:
        _start_daemon(host, "slurmctld")
        return
    for file in config_files.list_gpu_files(layout):
        os.mknod(file, stat.S_IFCHR | 0o666, Path("/dev/null").stat().st_rdev)
    _start_daemon(host, "slurmd")


def _start_daemon(host: HostAddress, program: str, *, user: pwd.struct_passwd | None = None) -> None:
    try:
        result = subprocess.run(
            [program],
            # Nothing from the environment of `up`: its SLURM_CONF would point elsewhere.
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
        raise _build_daemon_error(host, program, f"not up after {_START_TIMEOUT:.0f} s") from None
    if result.returncode != 0:
        raise _build_daemon_error(host, program, result.stderr.strip() or _read_log_tail(program, result.returncode))


def _read_log_tail(program: str, code: int) -> str:
    log = Path(config_files.LOGS, f"{program}.log")
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"exit code {code}; its log ends with:", *lines[-_LOG_LINES:]])


def _build_daemon_error(host: HostAddress, program: str, seen: str) -> SandboxError:
    return SandboxError(sandbox.SLURM, f"{program} on {host.name}: {seen}", "daemon")
