"""What is filled into the fixes for a node that does not answer."""

from aboard.core.cluster.node import Node
from aboard.diagnoses import Shell, format_shell
from aboard.diagnoses.fixes import Value


def build_fix_values(node: Node) -> dict[str, Value]:
    """The values that fixes for an unreachable node need."""
    return {
        "node": node.name,
        "target": node.target,
        "port": node.port or 22,
        "ssh": format_ssh_arguments(node),
        "known": node.target if node.port is None else f"[{node.target}]:{node.port}",
        "find": _format_python_lookup(node),
        "ask": format_shell("{python} --version", python=node.python),
    }


def format_ssh_arguments(node: Node) -> Shell:
    """The arguments of `ssh`."""
    if node.port is None:
        return format_shell("{login}", login=format_login(node))
    return format_shell("-p {port} {login}", port=node.port, login=format_login(node))


def format_login(node: Node) -> str:
    return f"{node.user}@{node.target}" if node.user else node.target


def _format_python_lookup(node: Node) -> Shell:
    """One ssh argument that locates the node's Python in a login shell."""
    find = format_shell("bash -lc {find}", find=format_shell("command -v {python}", python=node.python))
    # Double quotes are easier to read, where they are sufficient.
    return Shell(f'"{find}"') if not set(find) & set('"$`\\!') else format_shell("{find}", find=find)
