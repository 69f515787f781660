"""What the scripts of several nodes must agree on before their launchers become one run, and what each node keeps."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from aboard.core.cluster.interpreter import NO_ENV, Interpreter, InterpreterSource
from aboard.core.cluster.node import Node
from aboard.core.launchers.launcher_command import LauncherCommand
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.secrets.secret_names import MASK, is_secret
from aboard.core.secrets.secret_scrubber import mask_secrets, mask_words
from aboard.core.text.input_text import format_list
from aboard.diagnoses import Problem
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.diagnoses.usage import captured_scripts
from aboard.lazy_dataclass import dataclass

# Not the master's address and port, nor how ranks meet: those of rank 0's node count. Not the slots: each node has its
# own.
_SETTINGS: tuple[tuple[str, Callable[[LauncherCommand], object]], ...] = (
    ("the launcher", lambda command: command.launcher),
    ("the script", lambda command: command.request.program.target),
    ("the way to start the script", lambda command: command.request.program.kind.value),
    ("the number of nodes", lambda command: command.nodes),
    ("the number of ranks on each node", lambda command: command.ranks),
    ("the number of threads", lambda command: command.request.threads),
    ("the number of restarts", lambda command: command.request.restarts),
    ("the binding to cores", lambda command: command.request.bind),
    ("the hostfile", lambda command: command.hostfile),
    ("the included nodes", lambda command: command.include),
    ("the excluded nodes", lambda command: command.exclude),
)
# Ranks read nearly all variables that a script sets: a seed, a run's name or an NCCL setting must agree, or the run
# hangs, or writes to two places. These may differ, because they describe the node, and each node's ranks get its own.
_NODE_VARIABLES = re.compile(
    # who and where the node and the login are
    r"HOST(NAME|_IP)?|(NODE|LOCAL|POD|MY|VLLM_HOST)_?(IP|ADDR|NAME|HOST)|SSH_\w+|\w*HOME|USER|LOGNAME|MAIL|XDG_\w+|DBUS_\w+"
    # where its software and scratch directories are, which preflight compares by content
    r"|((PYTHON|LD_LIBRARY_|LIBRARY_|C|MAN|INFO|PKG_CONFIG_|CMAKE_PREFIX_|MODULE)?PATH|VIRTUAL_ENV\w*|CONDA_\w+|_CE_\w+"
    r"|LOADEDMODULES|_LMFILES_\w*|_*LMOD_\w+|_ModuleTable\w*|PS1|TMPDIR|TMP|TEMP|\w+_CACHE(_DIR|_PATH)?"
    r"|TORCH_EXTENSIONS_DIR)"
    # which devices, cores and network interfaces it has
    r"|\w+_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK|\w+_NUM_THREADS|GOMP_CPU_AFFINITY|KMP_AFFINITY"
    r"|\w+_SOCKET_IFNAME|(NCCL|NVSHMEM)_IB_(HCA|GID_INDEX)|NVSHMEM_HCA_LIST|UCX_NET_DEVICES"
)


@dataclass(frozen=True, kw_only=True)
class _Identity:
    """A node's rank, and what it is called."""

    rank: int
    names: tuple[str, ...]

    def mark(self, value: str) -> str:
        """The value with a mark for the node's name, or for all of it if it is the node's rank or an address."""
        if value == str(self.rank):
            return "\0rank"
        if Untrusted(value.strip()).as_address():
            return "\0address"
        # Scripts keep the launcher's command in a variable, which they may export.
        value = re.sub(rf"(--(?:node|machine)[-_]rank[ =]+){self.rank}(?![^\s])", "\\1\0rank", value)
        every = {part for name in self.names for part in (name, name.partition(".")[0]) if not part.isdecimal()} - {""}
        for name in sorted(every, key=len, reverse=True):
            value = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "\0name", value)
        return value


@dataclass(frozen=True, kw_only=True)
class _Difference:
    """What differs, and its value on the two nodes as shown, without secrets."""

    what: str
    here: str
    there: str


def compare_captures(by_node: Mapping[str, LauncherCommand], hosts: Mapping[str, str] = NO_ENV) -> Problem | None:
    """The first difference of a node from the first one; None if the captured commands are of one run.

    The nodes come in the order of their ranks; `hosts` are their own hostnames.
    """
    (first, expected), *others = by_node.items()
    identities = [_Identity(rank=rank, names=(node, hosts.get(node, ""))) for rank, node in enumerate(by_node)]
    for (node, command), identity in zip(others, identities[1:], strict=True):
        difference = next(_find_differences(command, expected, (identity, identities[0])), None)
        if difference is not None:
            seen = f"{difference.what} is {difference.here}, but {difference.there} on {first}"
            fix = captured_scripts.DIFFERS.fix("argument", what=difference.what)
            return Problem(where=node, seen=seen, fix=fix)
    return None


def find_spare_problem(by_node: Mapping[str, LauncherCommand], spares: Sequence[str]) -> Problem | None:
    """Why a spare could not take over ranks: each node's script has set a variable to a value of its own."""
    first, *others = by_node.values()
    own = sorted(
        name
        for name in {name for command in by_node.values() for name in command.env}
        if any(command.env.get(name) != first.env.get(name) for command in others)
    )
    if not spares or not own:
        return None
    fix = captured_scripts.DIFFERS.fix("spare", names=format_list(own))
    seen = f"it runs no script, which sets {format_list(own)} to another value on each node"
    return Problem(where=spares[0], seen=seen, fix=fix)


def apply_captures(
    nodes: Sequence[Node], by_node: Mapping[str, LauncherCommand]
) -> tuple[LaunchRequest, tuple[Node, ...]]:
    """The request of the run, and the nodes with the directory, Python, slots and variables of their own launchers.

    A node without a launcher gets what the first one has. The script ran after a node's `setup` lines and has their
    variables, so ranks don't run them again.
    """
    commands = tuple(by_node.values())
    request = commands[0].request
    shared = {
        name: value
        for name, value in request.env.items()
        if all(command.env.get(name) == value for command in commands)
    }
    changed = tuple(_apply_command(node, by_node.get(node.name, commands[0]), shared) for node in nodes)
    return replace(request, env=shared), changed


def _apply_command(node: Node, command: LauncherCommand, shared: Mapping[str, str]) -> Node:
    own = {name: value for name, value in command.env.items() if name not in shared}
    env = NO_ENV if node.interpreter is None else node.interpreter.env
    python = Interpreter(path=command.python, origin=InterpreterSource.SCRIPT, env=env) if command.python else None
    return replace(
        node,
        workdir=command.workdir,
        interpreter=python or node.interpreter,
        env={**node.env, **own},
        setup=command.setup,
        picked=node.picked if command.picked is None else command.picked,
    )


def _find_differences(
    command: LauncherCommand, expected: LauncherCommand, identities: "tuple[_Identity, _Identity]"
) -> Iterator[_Difference]:
    for what, get in _SETTINGS:
        if get(command) != get(expected):
            yield _Difference(what=what, here=_show(get(command)), there=_show(get(expected)))
    args = command.request.program.args
    if args != expected.request.program.args:
        yield _describe_argument(args, expected.request.program.args)
    for name in sorted(command.env.keys() | expected.env.keys()):
        here, there = command.env.get(name), expected.env.get(name)
        if here != there and not _may_differ(name, (here, there), identities):
            yield _Difference(what=name, here=_show_variable(name, here), there=_show_variable(name, there))


def _describe_argument(here: Sequence[str], there: Sequence[str]) -> _Difference:
    at = next(index for index, (one, other) in enumerate(zip_longest(here, there)) if one != other)
    shown = [_get_word(mask_words(words), at) for words in (here, there)]
    options = [(word or "").partition("=")[0] for word in shown]
    before = here[at - 1] if at and not any(option.startswith("-") for option in options) else ""
    if options[0] == options[1] and options[0].startswith("-"):
        what, shown = options[0], [(word or "").partition("=")[2] for word in shown]
    elif before.startswith("-") and "=" not in before:
        what = before
    else:
        what = f"argument {at + 1} of the script"
    return _Difference(what=escape_text(what), here=_show(shown[0]), there=_show(shown[1]))


def _get_word(words: Sequence[str], at: int) -> str | None:
    return words[at] if at < len(words) else None


def _may_differ(name: str, values: Sequence[str | None], identities: Sequence[_Identity]) -> bool:
    """Whether the variable is the node's own, by its name or because its value is made of the node's."""
    if _NODE_VARIABLES.fullmatch(name):
        return True
    if None in values:
        return False
    own = {identity.mark(value or "") for value, identity in zip(values, identities, strict=True)}
    return len(own) == 1


def _show_variable(name: str, value: str | None) -> str:
    if value is None:
        return "not set"
    return _show(MASK if is_secret(name) else mask_secrets(f"{name}={value}").partition("=")[2])


def _show(value: object) -> str:
    return "not given" if value in {None, ""} else f"'{escape_text(str(value))}'"
