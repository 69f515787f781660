"""The diagnosis of each way not to answer, and what is filled into its fix."""

from aboard.core.node import Node
from aboard.diagnoses import Diagnosis, Shell, reach, shell
from aboard.diagnoses.fixes import Value
from aboard.diagnoses.reason import Reason

UNREACHED: dict[Reason, Diagnosis] = {
    Reason.REFUSED: reach.REFUSED,
    Reason.TIMED_OUT: reach.TIMEOUT,
    Reason.NO_ROUTE: reach.NO_ROUTE,
    Reason.UNRESOLVED: reach.UNRESOLVED,
    Reason.KEY_REFUSED: reach.KEY_REFUSED,
    Reason.HOST_KEY_CHANGED: reach.HOST_KEY_CHANGED,
    Reason.HOST_KEY_UNKNOWN: reach.HOST_KEY_UNKNOWN,
    Reason.DROPPED: reach.DROPPED,
    Reason.NO_PYTHON: reach.NO_PYTHON,
    Reason.OLD_PYTHON: reach.OLD_PYTHON,
    Reason.SHELL_NOISE: reach.SHELL_NOISE,
    Reason.GARBAGE: reach.GARBAGE,
    Reason.WRONG_VERSION: reach.WRONG_VERSION,
    Reason.SILENT: reach.SILENT,
    Reason.NO_SSH: reach.NO_SSH,
    Reason.LOST: reach.LOST,
    Reason.UNKNOWN: reach.UNKNOWN,
}


def values_of(node: Node) -> dict[str, Value]:
    """What the fixes say of a node."""
    return {
        "node": node.name,
        "target": node.target,
        "port": node.port or 22,
        "ssh": ssh_words(node),
        "known": node.target if node.port is None else f"[{node.target}]:{node.port}",
        "find": _find_at_login(node),
        "ask": shell("{python} --version", python=node.python),
    }


def ssh_words(node: Node) -> Shell:
    """What comes after `ssh`."""
    if node.port is None:
        return shell("{login}", login=login_of(node))
    return shell("-p {port} {login}", port=node.port, login=login_of(node))


def login_of(node: Node) -> str:
    return f"{node.user}@{node.target}" if node.user else node.target


def _find_at_login(node: Node) -> Shell:
    """One word for ssh: looks for the node's Python in a login shell."""
    find = shell("bash -lc {find}", find=shell("command -v {python}", python=node.python))
    # Double quotes are easier to read, where they quote all that there is.
    return Shell(f'"{find}"') if not set(find) & set('"$`\\!') else shell("{find}", find=find)
