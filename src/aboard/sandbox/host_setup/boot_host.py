"""Boots a host: turns a process in new namespaces into a machine that `crew` can log in to."""

import os
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.containers import image_files, prepare_host
from aboard.sandbox.host_setup import network_commands, root_filesystem, system_files
from aboard.sandbox.layout import HEAD, HostAddress, SandboxLayout
from aboard.sandbox.namespaces import system_calls
from aboard.sandbox.requirements import HostPrograms, build_kernel_part_error, build_system_call_error
from aboard.sandbox.slurm import daemons

SSHD_PID_FILE = Path("/run/sshd.pid")
_SSHD_TIMEOUT = 30.0
_COMMAND_TIMEOUT = 30.0


@dataclass(frozen=True, kw_only=True)
class HostBlueprint:
    """Everything a host needs to boot."""

    layout: SandboxLayout
    disks: Path
    crew_id: int
    programs: HostPrograms
    python: str
    #: What runs this `aboard` and its environment; of these, `images` are the base interpreters.
    trees: tuple[Path, ...]
    images: tuple[Path, ...]
    trusted: tuple[int, ...]
    active: Mapping[str, str]
    #: A virtual environment that bare hosts lack and their images have.
    environment: Path | None
    shim: str


@dataclass(frozen=True, kw_only=True)
class SshKeys:
    """The ssh keys of a sandbox as (private, public): one for `crew` (the admin key of a bare one), one per host."""

    crew: tuple[str, str]
    hosts: dict[str, tuple[str, str]]


def boot_host(host: HostAddress, blueprint: HostBlueprint, keys: SshKeys) -> None:
    """Turns this process, the first one in new namespaces with its NICs attached, into a host."""
    disk = blueprint.disks / host.name
    first_boot = not any((disk / "upper").iterdir())
    try:
        if blueprint.layout.containers and first_boot:
            shutil.copytree(
                blueprint.disks / "images", disk / "upper" / image_files.IMAGES.relative_to("/"), symlinks=True
            )
        shared = {} if blueprint.layout.bare else {Path("/shared"): blueprint.disks / "shared"}
        if blueprint.layout.shared_home:
            shared[system_files.CREW_HOME] = blueprint.disks / "home"
        if blueprint.environment is not None:
            shared[image_files.ENVIRONMENT] = blueprint.environment
        if blueprint.layout.bare and host.name != HEAD:
            if first_boot:
                root_filesystem.hide_trees(disk, blueprint.trees, kept=blueprint.images)
            root_filesystem.enter_root(disk, shared=shared, trees=blueprint.images)
        else:
            root_filesystem.enter_root(disk, shared=shared, trees=blueprint.trees)
        system_calls.set_hostname(host.name)
    except OSError as error:
        raise build_system_call_error("overlay", error) from error
    run_ip_batch(blueprint.programs.ip, network_commands.format_host_batch(host, blueprint.layout))
    if blueprint.layout.containers:
        prepare_host.mount_for_containers(blueprint.crew_id)
    if first_boot:
        _install_host_files(host, blueprint, keys)
    Path("/run/sshd").mkdir()
    Path("/run/lock").mkdir()
    Path("/run/lock").chmod(0o1777)
    _start_sshd(blueprint.programs.sshd)
    if blueprint.layout.slurm:
        daemons.start_daemons(host, blueprint.layout)


def run_ip_batch(ip: str, batch: str) -> None:
    """Runs a batch of `ip` commands; raises for the first failure."""
    result = subprocess.run(
        [ip, "-batch", "-"], input=batch, text=True, capture_output=True, check=False, timeout=_COMMAND_TIMEOUT
    )
    if result.returncode != 0:
        seen = result.stderr.strip().replace("\n", "; ")
        if "Unknown device type" in seen or "not supported" in seen:
            raise build_kernel_part_error("bridge" if "type bridge" in batch else "veth", seen)
        raise SandboxError(sandbox.NETWORK, f"ip: {seen}")


def _install_host_files(host: HostAddress, blueprint: HostBlueprint, keys: SshKeys) -> None:
    crew_id, home, layout = blueprint.crew_id, system_files.CREW_HOME, blueprint.layout
    _write_file("/etc/hostname", f"{host.name}\n")
    _write_file("/etc/hosts", system_files.format_hosts_file(blueprint.layout))
    _write_file("/etc/machine-id", f"{uuid.uuid4().hex}\n")
    # No name server: an unknown name fails at once instead of after a timeout.
    _write_file("/etc/resolv.conf", "# this host resolves only the names in /etc/hosts\n")
    _write_user_entry("/etc/passwd", f"crew:x:{crew_id}:{crew_id}::{home}:/bin/bash")
    _write_user_entry("/etc/group", f"crew:x:{crew_id}:")
    _write_user_entry("/etc/shadow", "crew:*:20000:0:99999:7:::", mode=0o640)
    for old in (*Path("/etc/ssh").glob("ssh_host_*"), *Path("/etc/ssh/sshd_config.d").glob("*.conf")):
        old.unlink()
    Path("/etc/ssh/sshd_config.d").mkdir(exist_ok=True)
    private, public = keys.hosts[host.name]
    _write_file("/etc/ssh/ssh_host_ed25519_key", private, mode=0o600)
    _write_file("/etc/ssh/ssh_host_ed25519_key.pub", f"{public}\n")
    _write_file("/etc/ssh/sshd_config", system_files.SSHD_CONFIG)
    _write_file(
        SYSTEMCTL_PATH, format_systemctl_script(sshd=blueprint.programs.sshd, pid_file=str(SSHD_PID_FILE)), mode=0o755
    )
    if not Path("/usr/bin/python3").exists():
        Path("/usr/local/bin/python3").unlink(missing_ok=True)
        Path("/usr/local/bin/python3").symlink_to(blueprint.python)
    if blueprint.trusted:
        Path("/etc/aboard").mkdir(exist_ok=True)
        _write_file("/etc/aboard/trusted-owners", "".join(f"{owner}\n" for owner in blueprint.trusted))
    root_filesystem.make_empty_directory(Path("/private"), mode=0o755, owner=(crew_id, crew_id))
    if not layout.shared_home:
        root_filesystem.make_empty_directory(home, mode=0o700, owner=(crew_id, crew_id))
    if not layout.shared_home or host.name == HEAD:
        root_filesystem.make_empty_directory(home / ".ssh", mode=0o700, owner=(crew_id, crew_id))
        _write_file(home / ".bashrc", "", owner=crew_id)
        _write_file(home / ".ssh/authorized_keys", f"{keys.crew[1]}\n", owner=crew_id, mode=0o600)
    if host.name == HEAD:
        _install_head_files(blueprint, keys)
    if host.name == HEAD or layout.slurm:
        # Slurm starts batch scripts on nodes, and they run `aboard` as on the head.
        _write_file("/usr/local/bin/aboard", blueprint.shim, mode=0o755)
    if layout.slurm:
        # A secret that every host has and `crew` cannot read: the head's private host key.
        daemons.install_slurm(layout, secret=keys.hosts[HEAD][0])
    if layout.containers:
        # Bare nodes lack the other trees.
        trees = blueprint.images if layout.bare else blueprint.trees
        image_store = not layout.shared_home or host.name == HEAD
        prepare_host.install_containers(crew_id, trees, blueprint.environment, image_store=image_store)


def _install_head_files(blueprint: HostBlueprint, keys: SshKeys) -> None:
    crew_id, home = blueprint.crew_id, system_files.CREW_HOME
    public = {name: pair[1] for name, pair in keys.hosts.items()}
    known_hosts = system_files.format_known_hosts(blueprint.layout.places.values(), public)
    if blueprint.layout.bare:
        nodes = {name: key for name, key in public.items() if name != HEAD}
        _write_file(system_files.ADMIN_KEY, keys.crew[0], owner=crew_id, mode=0o600)
        _write_file(home / "fingerprints", system_files.format_fingerprints(nodes), owner=crew_id)
    else:
        _write_file(home / ".ssh/id_ed25519", keys.crew[0], owner=crew_id, mode=0o600)
        _write_file(home / ".ssh/id_ed25519.pub", f"{keys.crew[1]}\n", owner=crew_id)
        _write_file(home / ".ssh/known_hosts", known_hosts, owner=crew_id)
    # For logins at the head; commands run by ssh on nodes do not read this file.
    profile = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in blueprint.active.items())
    _write_file(home / ".profile", profile, owner=crew_id)
    _write_file(home / "hostfile", system_files.format_hostfile(blueprint.layout), owner=crew_id)


def _write_user_entry(path: str, entry: str, *, mode: int = 0o644) -> None:
    before = Path(path).read_text() if Path(path).exists() else ""
    _write_file(path, system_files.set_user_entry(before, entry), mode=mode)


def _write_file(path: str | Path, text: str, *, owner: int = 0, mode: int = 0o644) -> None:
    target = Path(path)
    # Not through a symlink: /etc/resolv.conf often points into /run, which is empty here.
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    target.chmod(mode)
    if owner:
        os.chown(target, owner, owner)


def _start_sshd(sshd: str) -> None:
    result = subprocess.run(
        [sshd],
        env={"PATH": system_files.ROOT_PATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_COMMAND_TIMEOUT,
    )
    deadline = time.monotonic() + _SSHD_TIMEOUT
    # sshd goes to the background before it listens, and writes its pid file afterwards.
    while result.returncode == 0 and not SSHD_PID_FILE.exists():
        if time.monotonic() > deadline:
            raise SandboxError(sandbox.SSHD, f"sshd is not listening after {_SSHD_TIMEOUT:.0f} s")
        time.sleep(0.01)
    if result.returncode != 0:
        raise SandboxError(sandbox.SSHD, f"sshd: {result.stderr.strip()}")


SYSTEMCTL_PATH = "/usr/local/sbin/systemctl"

_SYSTEMCTL_SCRIPT = """\
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
    *) echo "systemctl: a practice host has no systemd; $1 is not supported" >&2; exit 1 ;;
esac
"""


def format_systemctl_script(*, sshd: str, pid_file: str) -> str:
    """A `systemctl` that manages this sshd by its pid file."""
    return _SYSTEMCTL_SCRIPT.replace("@sshd@", sshd).replace("@pid_file@", pid_file)
