"""Faults: login shells that print text, or that are not bash."""

from typing import Annotated, ClassVar, Literal

from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults import file_edits
from aboard.sandbox.faults.root_commands import require_program
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup.system_files import CREW, CREW_HOME
from aboard.sandbox.sandbox import Sandbox

_PASSWD = "/etc/passwd"  # noqa: S105 - a file's name, no password


@dataclass(frozen=True, kw_only=True)
class NoisyShell(file_edits.FileEditFault):
    """The login shell prints extra lines before every command's output."""

    name: ClassVar[str] = "noisy-shell"
    resources: ClassVar[frozenset[str]] = frozenset({".bashrc"})
    lines: Annotated[int, "Number of lines; use millions for a flood."] = 3

    def inject(self, box: Sandbox, host: Host) -> None:
        # bash also reads .bashrc for a command run by ssh: bash(1), "Invocation".
        noise = f"yes 'Welcome! Please read the rules of this machine.' | head -n {self.lines}"
        file_edits.edit_lines(host, self.key, f"{CREW_HOME}/.bashrc", first=[noise])


@dataclass(frozen=True, kw_only=True)
class LoginShell(file_edits.FileEditFault):
    """The user's login shell is not bash."""

    name: ClassVar[str] = "login-shell"
    resources: ClassVar[frozenset[str]] = frozenset({_PASSWD})
    shell: Annotated[Literal["csh", "tcsh", "fish", "zsh", "dash", "nologin"], "The shell."]

    def check(self, box: Sandbox, host: Host) -> None:
        require_program(self.shell, self.shell)

    def inject(self, box: Sandbox, host: Host) -> None:
        path = require_program(self.shell, self.shell)
        entry = f"{CREW}:x:{box.crew_id}:{box.crew_id}::{CREW_HOME}:{path}"
        file_edits.edit_lines(host, self.key, _PASSWD, first=[entry], drop=lambda line: line.startswith(f"{CREW}:"))
