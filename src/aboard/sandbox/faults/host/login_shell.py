"""Faults: login shells that print text, or that are not bash."""

from typing import Annotated, ClassVar, Literal

from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults import file_edits
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.root_commands import require_program
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup.system_files import CREW, CREW_HOME
from aboard.sandbox.sandbox import Sandbox

_PASSWD = "/etc/passwd"  # noqa: S105 - a file's name, no password


@dataclass(frozen=True, kw_only=True)
class NoisyShell(Fault):
    """The login shell prints extra lines before every command's output."""

    name: ClassVar[str] = "noisy-shell"
    survives_power: ClassVar[bool] = True
    lines: Annotated[int, "Number of lines; use millions for a flood."] = 3

    def inject(self, box: Sandbox, host: Host) -> None:
        # bash also reads .bashrc for a command run by ssh: bash(1), "Invocation".
        noise = f"yes 'Welcome! Please read the rules of this machine.' | head -n {self.lines}"
        file_edits.edit_lines(host, self.key, f"{CREW_HOME}/.bashrc", first=[noise])

    def heal(self, box: Sandbox, host: Host) -> None:
        file_edits.undo_edit(host, self.key)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset({".bashrc"})


@dataclass(frozen=True, kw_only=True)
class LoginShell(Fault):
    """The user's login shell is not bash."""

    name: ClassVar[str] = "login-shell"
    survives_power: ClassVar[bool] = True
    shell: Annotated[Literal["csh", "tcsh", "fish", "zsh", "dash", "nologin"], "The shell."]

    def check(self, box: Sandbox, host: Host) -> None:
        require_program(self.shell, self.shell)

    def inject(self, box: Sandbox, host: Host) -> None:
        path = require_program(self.shell, self.shell)
        entry = f"{CREW}:x:{box.crew_id}:{box.crew_id}::{CREW_HOME}:{path}"
        file_edits.edit_lines(host, self.key, _PASSWD, first=[entry], drop=lambda line: line.startswith(f"{CREW}:"))

    def heal(self, box: Sandbox, host: Host) -> None:
        file_edits.undo_edit(host, self.key)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset({_PASSWD})
