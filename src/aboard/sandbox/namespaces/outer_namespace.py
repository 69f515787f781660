"""The outer namespace of a sandbox, whose init process (the hull) keeps all of it alive.

    machine
    └── outer init (own PID, mount, net, UTS, IPC namespace; holds the switch and the disks)
        ├── head (all of these once more, nested)
        ├── n1
        └── …

When the first process of a PID namespace exits, the kernel kills all others, and mounts and networks disappear with
their last user. So there is no clean-up to get wrong: killing the outer init removes everything. Until `keep`, it
exits when the process that builds the sandbox exits.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, NoReturn

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.namespaces import helper_program, system_calls
from aboard.sandbox.namespaces.process_identity import ProcessIdentity
from aboard.sandbox.requirements import HostPrograms, build_system_call_error

_START_TIMEOUT = 20.0
# End of file (the builder died) or any other word ends the shell, and with it the sandbox.
_WAIT_FOR_KEEP = 'read -r word && [ "$word" = keep ] && exec "$0" -- "$1" infinity </dev/null'


class OuterNamespace:
    """An outer namespace that lives while this object's pipe is open, or until it is removed after `keep`."""

    def __init__(self, *, outer_init: ProcessIdentity, pipe: IO[bytes]) -> None:
        self.outer_init = outer_init
        self._pipe = pipe

    def keep(self) -> None:
        """From now on the sandbox stays when this process exits."""
        self._pipe.write(b"keep\n")
        self._pipe.close()

    def abandon(self) -> None:
        """Removes the sandbox, unless `keep` was called."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()


def create_outer_namespace(*, disks: Path, programs: HostPrograms) -> OuterNamespace:
    """Creates an outer namespace without hosts."""
    spec = {"disks": disks, "tini": programs.tini, "sleep": programs.sleep}
    # Unbuffered, so that nothing is left to write when the pipe breaks.
    streams = {"bufsize": 0, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with helper_program.start_helper("aboard.sandbox.namespaces.outer_namespace", spec, **streams) as starter:
        pipe, starter.stdin = starter.stdin, None
        answers, starter.stdout = starter.stdout, None
        if pipe is None or answers is None:
            raise AssertionError("Popen was given PIPE")
        with answers:
            try:
                return OuterNamespace(outer_init=_read_answer(answers), pipe=pipe)
            except BaseException:
                pipe.close()
                starter.kill()
                raise


def _read_answer(answers: IO[bytes]) -> ProcessIdentity:
    ready, _, _ = select.select([answers], [], [], _START_TIMEOUT)
    line = answers.readline() if ready else b""
    if not line:
        raise SandboxError(sandbox.BUILD, f"could not create the namespaces within {_START_TIMEOUT:.0f} s")
    message = json.loads(line)
    helper_program.raise_error(message)
    return ProcessIdentity.of(message["pid"])


def main(handle: int) -> None:
    """Entry point of the started program: creates the namespaces and prints the pid of their first process."""
    spec = helper_program.read_spec(handle)
    try:
        system_calls.unshare_namespaces(system_calls.ALL_NAMESPACES)
    except OSError as error:
        print(helper_program.format_error_line(build_system_call_error("namespaces", error)), end="")  # noqa: T201 - its reply to the builder
        return
    failed, failing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become_first_process(spec, failing)
    os.close(failing)
    # The pipe closes when the first process has exec'ed the shell.
    line = os.read(failed, 65536).decode() or json.dumps({"pid": pid}) + "\n"
    print(line, end="", flush=True)  # noqa: T201 - its reply to the builder
    os._exit(0)


def _become_first_process(spec: dict[str, Any], failing: int) -> NoReturn:
    try:
        root, disks = Path("/"), Path(spec["disks"])
        # Slave: unmounts on the machine apply here too, and none of our mounts appear there.
        system_calls.mount("none", root, flags=system_calls.SLAVE | system_calls.RECURSIVE)
        system_calls.mount("disks", disks, "tmpfs", options="mode=0755")
        system_calls.mount("proc", Path("/proc"), "proc")
        system_calls.set_hostname("aboard-sandbox")
        shared = disks / "shared"
        shared.mkdir()
        shared.chmod(0o1777)
        os.chdir("/")
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.execv("/bin/sh", ["sh", "-c", _WAIT_FOR_KEEP, spec["tini"], spec["sleep"]])  # noqa: S606 - no shell
    except OSError as error:
        os.write(failing, helper_program.format_error_line(build_system_call_error("tmpfs", error)).encode())
    finally:
        os._exit(1)
    sys.exit(1)
