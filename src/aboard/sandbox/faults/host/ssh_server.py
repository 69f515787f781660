"""Faults: sshd stopped, slow or refusing logins; a changed host key; a removed user key."""

from typing import Annotated, ClassVar

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults import file_edits, resident_program
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.root_commands import run_script
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup.boot_host import SSHD_PID_FILE
from aboard.sandbox.host_setup.system_files import CREW_HOME
from aboard.sandbox.sandbox import Sandbox

SSHD_CONFIG = "/etc/ssh/sshd_config"
# An administrator's own file. The first of two settings wins, and files are read in the order of their names.
_MAX_STARTUPS = "/etc/ssh/sshd_config.d/50-max-startups.conf"
_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
# SIGHUP makes sshd re-execute itself in the same process, with the same limits. It writes its pid file when it listens
# again.
_RELOAD = """
[ -s "$1" ] || exit 0
read -r pid < "$1"
rm -f "$1"
kill -HUP "$pid"
tries=0
until [ -s "$1" ]; do tries=$((tries + 1)); [ "$tries" -lt 1500 ]; sleep 0.02; done
"""

_KEEP_KEY = """
mkdir -p "$1"; chmod 700 "$1"
if ! [ -e "$1/key.pub" ]; then cp -p "$2" "$1/key"; cp -p "$2.pub" "$1/key.pub"; fi
"""
_KEY_BACK = """
if [ -e "$1/key.pub" ]; then cp -p "$1/key" "$2"; cp -p "$1/key.pub" "$2.pub"; fi
rm -rf "$1"
"""


def reload_sshd(host: Host) -> None:
    """Makes sshd reload its config file, if it runs; open sessions stay open."""
    run_script(host, _RELOAD, str(SSHD_PID_FILE))


def is_sshd_running(host: Host) -> bool:
    """Whether sshd is listening."""
    return host.run(["test", "-s", str(SSHD_PID_FILE)]).returncode == 0


def require_sshd(host: Host, what: str) -> None:
    """Raises unless sshd is listening, from which sessions inherit this."""
    if not is_sshd_running(host):
        seen = f"sshd on {host.name} is not running, and sessions inherit their {what} from it"
        raise SandboxError(sandbox.FAULT_OPTION, seen, "sshd-stopped", node=host.name)


@dataclass(frozen=True, kw_only=True)
class SshdStopped(Fault):
    """sshd is not running: logins are refused; open sessions stay open."""

    name: ClassVar[str] = "sshd-stopped"
    resources: ClassVar[frozenset[str]] = frozenset({"sshd"})

    def inject(self, box: Sandbox, host: Host) -> None:
        host.sshd_stop()

    def heal(self, box: Sandbox, host: Host) -> None:
        if not is_sshd_running(host):
            host.sshd_restart()


@dataclass(frozen=True, kw_only=True)
class SshdSlow(Fault):
    """sshd is slow: it sends its banner some seconds after the connection."""

    name: ClassVar[str] = "sshd-slow"
    resources: ClassVar[frozenset[str]] = frozenset({"sshd"})
    seconds: Annotated[float, "Delay of each login, in seconds."] = 10.0

    def check(self, box: Sandbox, host: Host) -> None:
        if self.seconds <= 0:
            raise SandboxError(sandbox.FAULT_OPTION, f"{self.seconds} s is not a delay", "sshd-slow")

    def inject(self, box: Sandbox, host: Host) -> None:
        # Our program replaces sshd. It is not a proxy, which would hide the client's address, nor address
        # translation, which cannot be removed without cutting the sessions through it.
        host.sshd_stop()
        about = {"sshd": box.programs.sshd, "pid_file": str(SSHD_PID_FILE), "seconds": self.seconds}
        resident_program.start_resident(box, host, self.key, "slow-sshd", about)

    def heal(self, box: Sandbox, host: Host) -> None:
        resident_program.end_resident(host, self.key)
        host.sshd_restart()

    def reapply(self, box: Sandbox, host: Host) -> None:
        if not resident_program.is_resident_alive(host, self.key):
            self.inject(box, host)


@dataclass(frozen=True, kw_only=True)
class MaxStartups(Fault):
    """sshd drops connections when more than a few clients log in at once (MaxStartups)."""

    name: ClassVar[str] = "max-startups"
    survives_power: ClassVar[bool] = True
    resources: ClassVar[frozenset[str]] = frozenset({"MaxStartups"})
    limit: Annotated[int, "Simultaneous logins."] = 2

    def inject(self, box: Sandbox, host: Host) -> None:
        file_edits.edit_lines(host, self.key, _MAX_STARTUPS, first=[f"MaxStartups {self.limit}"])
        reload_sshd(host)

    def heal(self, box: Sandbox, host: Host) -> None:
        file_edits.undo_edit(host, self.key)
        reload_sshd(host)


@dataclass(frozen=True, kw_only=True)
class OtherHostKey(Fault):
    """The host key differs from the one in known_hosts, as after a reinstall."""

    name: ClassVar[str] = "other-host-key"
    survives_power: ClassVar[bool] = True

    def inject(self, box: Sandbox, host: Host) -> None:
        run_script(host, _KEEP_KEY, self.store, _HOST_KEY)
        run_script(host, 'rm -f "$1"; ssh-keygen -q -t ed25519 -N "" -f "$1" </dev/null', _HOST_KEY)
        reload_sshd(host)

    def heal(self, box: Sandbox, host: Host) -> None:
        run_script(host, _KEY_BACK, self.store, _HOST_KEY)
        reload_sshd(host)


@dataclass(frozen=True, kw_only=True)
class KeyRemoved(file_edits.FileEditFault):
    """The host no longer accepts the user's key: `Permission denied (publickey)`."""

    name: ClassVar[str] = "key-removed"

    def inject(self, box: Sandbox, host: Host) -> None:
        file_edits.edit_lines(host, self.key, f"{CREW_HOME}/.ssh/authorized_keys", drop=lambda line: bool(line.strip()))
