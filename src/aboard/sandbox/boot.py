"""A host's first minutes: from a bare process in new namespaces to a machine that lets `crew` log in."""

import os
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from aboard.diagnoses import SandboxError, sandbox
from aboard.lazy import dataclass
from aboard.sandbox import files, kernel, network, rootfs
from aboard.sandbox.layout import HEAD, Layout, Place
from aboard.sandbox.needs import Programs, missing_part, refused
from aboard.sandbox.slurm import daemons

SSHD_PID_FILE = Path("/run/sshd.pid")
_SSHD_TIMEOUT = 30.0
_COMMAND_TIMEOUT = 30.0


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """All that a host needs to know to come up."""

    layout: Layout
    disks: Path
    crew_id: int
    programs: Programs
    python: str
    trees: tuple[Path, ...]
    trusted: tuple[int, ...]
    active: Mapping[str, str]
    shim: str


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The keys of a sandbox: one of `crew`'s, and one per host (by name: private, public)."""

    crew: tuple[str, str]
    hosts: dict[str, tuple[str, str]]


def boot(place: Place, blueprint: Blueprint, keys: Keys) -> None:
    """Turn this process, the first of new namespaces with its cards plugged in, into a host."""
    disk = blueprint.disks / place.name
    first_boot = not any((disk / "upper").iterdir())
    try:
        rootfs.enter_root(disk, shared=blueprint.disks / "shared", trees=blueprint.trees)
        kernel.set_hostname(place.name)
    except OSError as error:
        raise refused("overlay", error) from error
    run_ip(blueprint.programs.ip, network.host_batch(place, blueprint.layout))
    if first_boot:
        _install(place, blueprint, keys)
    Path("/run/sshd").mkdir()
    Path("/run/lock").mkdir()
    Path("/run/lock").chmod(0o1777)
    _start_sshd(blueprint.programs.sshd)
    if blueprint.layout.slurm:
        daemons.start(place, blueprint.layout)


def run_ip(ip: str, batch: str) -> None:
    """Carry out a batch; its first failure is the error."""
    done = subprocess.run(
        [ip, "-batch", "-"], input=batch, text=True, capture_output=True, check=False, timeout=_COMMAND_TIMEOUT
    )
    if done.returncode != 0:
        seen = done.stderr.strip().replace("\n", "; ")
        if "Unknown device type" in seen or "not supported" in seen:
            raise missing_part("bridge" if "type bridge" in batch else "veth", seen)
        raise SandboxError(sandbox.NETWORK, f"ip: {seen}")


def _install(place: Place, blueprint: Blueprint, keys: Keys) -> None:
    crew_id, home = blueprint.crew_id, files.CREW_HOME
    _put("/etc/hostname", f"{place.name}\n")
    _put("/etc/hosts", files.hosts_file(blueprint.layout))
    _put("/etc/machine-id", f"{uuid.uuid4().hex}\n")
    # No name server: an unknown name is refused at once instead of after a time-out.
    _put("/etc/resolv.conf", "# this host knows the names in /etc/hosts only\n")
    _put("/etc/passwd", files.with_user(_text("/etc/passwd"), f"crew:x:{crew_id}:{crew_id}::{home}:/bin/bash"))
    _put("/etc/group", files.with_user(_text("/etc/group"), f"crew:x:{crew_id}:"))
    _put("/etc/shadow", files.with_user(_text("/etc/shadow"), "crew:*:20000:0:99999:7:::"), mode=0o640)
    for old in (*Path("/etc/ssh").glob("ssh_host_*"), *Path("/etc/ssh/sshd_config.d").glob("*.conf")):
        old.unlink()
    Path("/etc/ssh/sshd_config.d").mkdir(exist_ok=True)
    private, public = keys.hosts[place.name]
    _put("/etc/ssh/ssh_host_ed25519_key", private, mode=0o600)
    _put("/etc/ssh/ssh_host_ed25519_key.pub", f"{public}\n")
    _put("/etc/ssh/sshd_config", files.SSHD_CONFIG)
    _put(SYSTEMCTL_PATH, systemctl(sshd=blueprint.programs.sshd, pid_file=str(SSHD_PID_FILE)), mode=0o755)
    if not Path("/usr/bin/python3").exists():
        Path("/usr/local/bin/python3").unlink(missing_ok=True)
        Path("/usr/local/bin/python3").symlink_to(blueprint.python)
    if blueprint.trusted:
        Path("/etc/aboard").mkdir(exist_ok=True)
        _put("/etc/aboard/trusted-owners", "".join(f"{owner}\n" for owner in blueprint.trusted))
    _own_directories([home, home / ".ssh", Path("/private")], owner=crew_id)
    _put(home / ".bashrc", "", owner=crew_id)
    _put(home / ".ssh/authorized_keys", f"{keys.crew[1]}\n", owner=crew_id, mode=0o600)
    if place.name == HEAD:
        _install_head(blueprint, keys)
    if blueprint.layout.slurm:
        # A secret that every host can have, and that `crew` can't read: the head's own private host key.
        daemons.install(blueprint.layout, secret=keys.hosts[HEAD][0])


def _install_head(blueprint: Blueprint, keys: Keys) -> None:
    crew_id, home = blueprint.crew_id, files.CREW_HOME
    public = {name: pair[1] for name, pair in keys.hosts.items()}
    known = files.known_hosts(blueprint.layout.places.values(), public)
    _put(home / ".ssh/id_ed25519", keys.crew[0], owner=crew_id, mode=0o600)
    _put(home / ".ssh/id_ed25519.pub", f"{keys.crew[1]}\n", owner=crew_id)
    _put(home / ".ssh/known_hosts", known, owner=crew_id)
    # A login at the head has it; what ssh runs on nodes does not read this file.
    profile = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in blueprint.active.items())
    _put(home / ".profile", profile, owner=crew_id)
    _put(home / "hostfile", files.hostfile(blueprint.layout), owner=crew_id)
    _put("/usr/local/bin/aboard", blueprint.shim, mode=0o755)


def _own_directories(directories: Iterable[Path], *, owner: int) -> None:
    for directory in directories:
        # The machine may have a directory of this name: here it is new and empty.
        if directory.is_symlink() or directory.is_file():
            directory.unlink()
        elif directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        directory.chmod(0o700 if directory != Path("/private") else 0o755)
        os.chown(directory, owner, owner)


def _text(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


def _put(path: str | Path, text: str, *, owner: int = 0, mode: int = 0o644) -> None:
    target = Path(path)
    # Not through a link: /etc/resolv.conf is often one into /run, which is empty here.
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    target.chmod(mode)
    if owner:
        os.chown(target, owner, owner)


def _start_sshd(sshd: str) -> None:
    done = subprocess.run(
        [sshd],
        env={"PATH": files.ROOT_PATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_COMMAND_TIMEOUT,
    )
    deadline = time.monotonic() + _SSHD_TIMEOUT
    # sshd goes to the background before it listens, and writes its number after.
    while done.returncode == 0 and not SSHD_PID_FILE.exists():
        if time.monotonic() > deadline:
            raise SandboxError(sandbox.SSHD, f"sshd doesn't listen after {_SSHD_TIMEOUT:.0f} s")
        time.sleep(0.01)
    if done.returncode != 0:
        raise SandboxError(sandbox.SSHD, f"sshd: {done.stderr.strip()}")


SYSTEMCTL_PATH = "/usr/local/sbin/systemctl"

_PROGRAM = """\
#!/bin/sh
# A practice host has no systemd: this manages its ssh server, and nothing else.
file=@pid_file@
listens() { [ -s "$file" ] && read -r pid < "$file" && kill -0 "$pid" 2>/dev/null; }
await() { tries=0; until "$@"; do tries=$((tries + 1)); [ "$tries" -lt 1500 ] || exit 1; sleep 0.02; done; }
gone() { ! kill -0 "$pid" 2>/dev/null; }
start() { listens || { @sshd@ && await listens; }; }
stop() { listens && kill "$pid" && await gone; rm -f "$file"; }
case "$2" in
    ssh|sshd|ssh.service|sshd.service) ;;
    *) echo "systemctl: a practice host has no systemd; only its ssh server can be managed" >&2; exit 1 ;;
esac
case "$1" in
    start) start ;;
    stop) stop ;;
    restart) stop; start ;;
    reload) listens || exit 1; rm -f "$file"; kill -HUP "$pid"; await listens ;;
    is-active) if listens; then echo active; else echo inactive; exit 3; fi ;;
    *) echo "systemctl: a practice host has no systemd; $1 can't be done" >&2; exit 1 ;;
esac
"""


def systemctl(*, sshd: str, pid_file: str) -> str:
    """The program, told where sshd is and where it writes its number."""
    return _PROGRAM.replace("@sshd@", sshd).replace("@pid_file@", pid_file)
