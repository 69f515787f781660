"""What is filled into the fixes for a node that does not answer."""

from aboard.core.node import Node
from aboard.diagnoses import Shell, shell
from aboard.diagnoses.fixes import Value


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
