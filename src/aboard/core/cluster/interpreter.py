"""Which Python runs a node's ranks: the configured one, the head's environment, or the login shell's."""

from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Literal

from aboard.core.decoding import Matching, MaxLength
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass

PATH_LENGTH = 128 * 1024
# An environment variable can't hold a NUL.
_VALUE = Matching(r"[^\0]*")
NO_ENV: Mapping[str, str] = MappingProxyType({})


class InterpreterSource(Enum):
    """Where a node's interpreter comes from, as shown to users."""

    CONFIGURED = "cluster.python"
    SETUP = "setup"
    CONTAINER = "in the container"
    SCRIPT = "from the script"
    VIRTUAL_ENV = "$VIRTUAL_ENV"
    CONDA_PREFIX = "$CONDA_PREFIX"
    ABOARD = "runs aboard"
    LOGIN_SHELL = "login shell"


@dataclass(frozen=True, kw_only=True)
class HeadEnvironment:
    """The environment in which `aboard` was started: nodes that have the same path use it.

    `python` is not resolved, since a resolved path would leave the virtual environment. `running`: it runs this
    process. `places` are other paths of it on nodes, the first one that exists counts; `~/` is the node's home.
    """

    python: str
    origin: InterpreterSource
    running: bool = False
    places: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FoundInterpreter:
    """What an agent reports about an interpreter path, and the node's PATH.

    `prefix` and `variable` are set if it belongs to an environment; `unsafe` says who else could change it. `path` is
    set if it is at another place than on the head.
    """

    exists: bool = False
    path: Annotated[Untrusted, _VALUE, MaxLength(4096)] = NO_TEXT
    prefix: Annotated[Untrusted, _VALUE, MaxLength(4096)] = NO_TEXT
    variable: Literal["VIRTUAL_ENV", "CONDA_PREFIX", ""] = ""
    unsafe: Untrusted = NO_TEXT
    search_path: Annotated[Untrusted, _VALUE, MaxLength(PATH_LENGTH)] = NO_TEXT


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The Python of a node's ranks, and the environment variables that come with it.

    `lacking` is the head's environment if this node doesn't have it, with `lacking_origin`; `refused` is why the node
    must not use it.
    """

    path: str
    origin: InterpreterSource
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENV)
    lacking: str = ""
    lacking_origin: InterpreterSource | None = None
    refused: Untrusted = NO_TEXT

    def __str__(self) -> str:
        return f"{self.path} ({self.origin.value})"


_LOGIN_SHELL = Interpreter(path="python3", origin=InterpreterSource.LOGIN_SHELL)


def choose_interpreter(
    interpreter: Interpreter | None, offered: HeadEnvironment | None, found: FoundInterpreter | None, *, local: bool
) -> Interpreter:
    """Prefers the configured one, then the head's environment if the node has it, then the login shell's `python3`.

    A path that somebody else could change is not used, except on this machine if it already runs this process.
    """
    if interpreter is not None:
        env = _build_activation_env(interpreter.path, found) if found is not None and found.exists else NO_ENV
        return Interpreter(path=interpreter.path, origin=interpreter.origin, env=env)
    if offered is None or found is None:
        return _LOGIN_SHELL
    if not found.exists:
        return replace(_LOGIN_SHELL, lacking=offered.python, lacking_origin=offered.origin)
    if found.unsafe and not (local and offered.running):
        return replace(_LOGIN_SHELL, lacking=offered.python, refused=found.unsafe)
    # Raw is safe: it was compared with the places that we named.
    path = found.path.raw() or offered.python
    return Interpreter(path=path, origin=offered.origin, env=_build_activation_env(path, found))


def is_at_place(path: str, place: str) -> bool:
    """Whether a path that a node reports is the one that we asked for; of one below its home, it knows the start."""
    if not place.startswith("~/"):
        return path == place
    return path.startswith("/") and path.endswith(place[1:]) and path.isprintable() and "/../" not in path


def _build_activation_env(path: str, found: FoundInterpreter) -> Mapping[str, str]:
    """The variables that `activate` sets: the environment's tools, such as ninja, come before the system's."""
    if not found.prefix:
        return NO_ENV
    folder = path.rpartition("/")[0]
    # Raw is safe: these values came from the node and go back into its ranks' environment.
    search = ":".join(filter(None, [folder, found.search_path.raw()]))
    return {"PATH": search, found.variable: found.prefix.raw()}


def encode_interpreter(chosen: Interpreter | None) -> dict[str, str] | None:
    """The Python of a node's ranks and why it was chosen, for documents; None if none was."""
    return None if chosen is None else {"path": chosen.path, "origin": chosen.origin.value}
