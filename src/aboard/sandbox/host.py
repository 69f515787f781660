"""One host of a sandbox: runs commands in it, and switches its power and its sshd."""

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.host_setup import network_commands
from aboard.sandbox.host_setup.boot_host import SSHD_PID_FILE
from aboard.sandbox.layout import SandboxLayout
from aboard.sandbox.namespaces import host_commands
from aboard.sandbox.namespaces.host_commands import HostCommand
from aboard.sandbox.namespaces.process_identity import ProcessIdentity
from aboard.sandbox.requirements import HostPrograms

_PARENT_NAMESPACE = 0xB702  # NS_GET_PARENT, ioctl_ns(2)
_OFF_TIMEOUT = 30.0
_SSHD_TIMEOUT = 30.0
_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"


class HostSandbox(Protocol):
    """What a host needs of its sandbox, which imports this module."""

    programs: HostPrograms

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> SandboxLayout: ...

    @property
    def crew_id(self) -> int: ...

    def switch(self, argv: Sequence[str], *, timeout: float = 60) -> subprocess.CompletedProcess[str]: ...

    def first_process(self, name: str) -> ProcessIdentity | None: ...

    def boot(self, names: Iterable[str]) -> None: ...


class Host:
    """One host; commands run as the user `crew` unless `root=True`."""

    def __init__(self, box: HostSandbox, name: str) -> None:
        self._box = box
        self._place = box.layout.places[name]
        self.name = name
        self.address = self._place.address
        self.fabric_address = self._place.fabric_address
        #: The switch ports of its cables, for `Sandbox.switch`: ["n2"], with a fabric ["n2", "n2i"].
        self.ports = network_commands.list_switch_ports(self._place)

    def __repr__(self) -> str:
        return f"Host({self.name!r}, {self.address})"

    @property
    def on(self) -> bool:
        """Whether it is powered on."""
        return self._box.first_process(self.name) is not None

    @property
    def pid(self) -> int:
        """The machine's pid of its init process."""
        return self._first().pid

    def run(
        self,
        argv: Sequence[str],
        *,
        root: bool = False,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002 - subprocess.run's own word
        timeout: float = 60,
        cwd: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in this host; after the timeout its whole session is killed."""
        return host_commands.run_command(
            self._first(), self._command(argv, env, cwd, root=root), text=input, timeout=timeout
        )

    def popen(
        self,
        argv: Sequence[str],
        *,
        root: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        **streams: Any,
    ) -> subprocess.Popen[Any]:
        """Starts a program in this host; `kill()` on the handle kills its whole session."""
        return host_commands.start_command(self._first(), self._command(argv, env, cwd, root=root), **streams)

    def become(self, argv: Sequence[str], *, root: bool = False, env: Mapping[str, str] | None = None) -> NoReturn:
        """Replaces this process with a program in this host, on the same terminal."""
        host_commands.exec_command(self._first(), self._command(argv, env, None, root=root))

    def pids(self) -> list[int]:
        """The machine's pids of all processes in this host, including those in containers."""
        namespace = Path(f"/proc/{self.pid}/ns/pid").stat().st_ino
        every = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in every if namespace in _list_pid_namespaces(pid)]

    def kill_power(self) -> None:
        """Simulates a power loss: removes the cables first, so that no peer receives a FIN or RST."""
        first = self._first()
        for port in self.ports:
            self._box.switch(["ip", "link", "delete", port])
        if not first.kill(timeout=_OFF_TIMEOUT):
            raise SandboxError(sandbox.STUCK, f"{self.name} does not terminate", "usual")

    def power_on(self) -> None:
        """Boots it again from its disk; memory file systems are empty."""
        if not self.on:
            self._box.boot([self.name])

    def sshd_stop(self) -> None:
        """Stops the listening sshd; open sessions stay open."""
        script = f'read -r pid < {SSHD_PID_FILE} && kill "$pid" && while kill -0 "$pid"; do sleep 0.01; done'
        self.run(["sh", "-c", script], root=True, timeout=_SSHD_TIMEOUT)
        self.run(["rm", "-f", str(SSHD_PID_FILE)], root=True)

    def sshd_restart(self, options: Sequence[str] = ()) -> None:
        """Restarts sshd, with `-o` options that override its config file, and waits until it listens."""
        self.sshd_stop()
        flags = [word for option in options for word in ("-o", option)]
        done = self.run([self._box.programs.sshd, *flags], root=True)
        deadline = time.monotonic() + _SSHD_TIMEOUT
        while done.returncode == 0 and self.run(["test", "-s", str(SSHD_PID_FILE)]).returncode != 0:
            if time.monotonic() > deadline:
                break
        else:
            if done.returncode == 0:
                return
        raise SandboxError(
            sandbox.SSHD, f"sshd on {self.name} failed to start: {done.stderr.strip() or 'it is not listening'}"
        )

    def ssh_host_key(self, *, new: bool = False) -> str:
        """The public host key; with `new`, a new key is generated first."""
        if new:
            script = f"rm -f {_HOST_KEY} && ssh-keygen -q -t ed25519 -N '' -f {_HOST_KEY}"
            self.run(["sh", "-c", script], root=True)
            self.sshd_restart()
        return self.run(["cat", f"{_HOST_KEY}.pub"]).stdout.strip()

    def _first(self) -> ProcessIdentity:
        process = self._box.first_process(self.name)
        if process is None:
            raise SandboxError(
                sandbox.HOST_OFF, f"{self.name} in sandbox {self._box.name!r} is off", name=self._box.name
            )
        return process

    def _command(
        self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str | None, *, root: bool
    ) -> HostCommand:
        # All hosts share this machine's cores: ranks with a thread for each of them would wait for each other.
        threads = max(1, len(os.sched_getaffinity(0)) // self._box.layout.nodes)
        env = {"OMP_NUM_THREADS": str(threads), **(env or {})}
        return HostCommand(argv=argv, uid=0 if root else self._box.crew_id, env=env, cwd=cwd)


def _list_pid_namespaces(pid: int) -> set[int]:
    """The PID namespaces of a process, innermost first."""
    found: set[int] = set()
    with contextlib.ExitStack() as stack:
        try:
            handle = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY)
        except OSError:
            return found
        stack.callback(os.close, handle)
        while True:
            found.add(os.fstat(handle).st_ino)
            try:
                handle = fcntl.ioctl(handle, _PARENT_NAMESPACE)
            except PermissionError:
                # The parent is not visible to us: it is the machine's own namespace.
                return found
            stack.callback(os.close, handle)
