"""Starts, runs or execs programs inside the namespaces of a host."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, NoReturn

from aboard.lazy_dataclass import dataclass
from aboard.sandbox.host_setup.system_files import CREW, CREW_HOME, CREW_PATH, ROOT_PATH
from aboard.sandbox.namespaces import helper_program
from aboard.sandbox.namespaces.process_identity import ProcessIdentity

_RUN_IN_HOST = "aboard.sandbox.namespaces.run_in_host"
_AFTER_KILL = 5.0


@dataclass(frozen=True, kw_only=True)
class HostCommand:
    """A command and its user; the environment is that of a fresh login plus `env`."""

    argv: Sequence[str]
    uid: int
    env: Mapping[str, str]
    cwd: str | None = None

    def spec(self, target: ProcessIdentity, *, own_session: bool) -> dict[str, Any]:
        """The input of `run_in_host`."""
        login = _build_login_environment(root=self.uid == 0)
        return {
            "target": asdict(target),
            "argv": list(self.argv),
            "uid": self.uid,
            "gid": self.uid,
            "env": {**login, **self.env},
            "cwd": self.cwd or login["HOME"],
            "own_session": own_session,
        }


def start_command(target: ProcessIdentity, command: HostCommand, **streams: Any) -> subprocess.Popen[Any]:
    """Starts a command in the namespaces of a process; killing the handle kills the command's whole session."""
    return helper_program.start_helper(_RUN_IN_HOST, command.spec(target, own_session=True), **streams)


def run_command(
    target: ProcessIdentity, command: HostCommand, *, text: str | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Runs a command until it exits; after the timeout kills it and raises TimeoutExpired."""
    stdin: int | IO[str] = subprocess.DEVNULL if text is None else subprocess.PIPE
    with start_command(
        target, command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(text, timeout=timeout)
        except BaseException as error:
            process.kill()
            # A daemon that left the session may hold the pipes open forever.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_AFTER_KILL)
            if isinstance(error, subprocess.TimeoutExpired):
                error.cmd = list(command.argv)
            raise
    return subprocess.CompletedProcess(list(command.argv), process.returncode, out, err)


def exec_command(target: ProcessIdentity, command: HostCommand) -> NoReturn:
    """Replaces this process with a command inside, on the same terminal."""
    spec = helper_program.write_spec_file(command.spec(target, own_session=False))
    os.set_inheritable(spec, True)  # noqa: FBT003 - set_inheritable takes nothing else
    argv = helper_program.build_helper_argv(_RUN_IN_HOST, spec)
    os.execve(sys.executable, argv, helper_program.build_helper_environment())  # noqa: S606 - no shell is wanted


def _build_login_environment(*, root: bool) -> dict[str, str]:
    home = Path("/root") if root else CREW_HOME
    user = "root" if root else CREW
    return {
        "HOME": str(home),
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "PATH": ROOT_PATH if root else CREW_PATH,
    }
