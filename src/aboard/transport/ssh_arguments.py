"""The arguments of every ssh that Aboard starts: what no login may leave out, and which node it is for."""

from collections.abc import Mapping, Sequence

from aboard.core.cluster.node import Node

# Host keys are checked whatever ssh_config says. It gives a node no agent, display or tunnel either, but decides about
# Kerberos tickets, which homes may need.
_EVERY_LOGIN: Mapping[str, str] = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ForwardX11Trusted": "no",
    "Tunnel": "no",
    "PermitLocalCommand": "no",
    "ClearAllForwardings": "yes",
    "ConnectTimeout": "10",
}
# For a stream of bytes or a shell on the other side: an existing master is used, none is made.
STREAM: Mapping[str, str] = {
    "ControlMaster": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "EscapeChar": "none",
}
# For a login that is neither an agent nor a part of `trust`: ssh_config decides which host keys are accepted.
AS_CONFIGURED: Mapping[str, str] = {"StrictHostKeyChecking": ""}


def build_ssh_argv(
    target: Node | str, command: str, options: Mapping[str, str], *, first: Sequence[str] = (), verbose: bool = False
) -> tuple[str, ...]:
    """The whole command; nothing in it is secret.

    `options` win over those of every login, and `first` over all of them and over ssh_config. With `verbose`, debug
    lines show the phases of a slow or failed login.
    """
    where = ("--", target) if isinstance(target, str) else format_target(target)
    return ("ssh", *first, "-T", *(("-v",) if verbose else ()), *build_login_options(options), *where, command)


def build_login_options(options: Mapping[str, str]) -> tuple[str, ...]:
    """The options of every login, with these in place of those of the same name; "" leaves one to ssh_config."""
    return format_options({**_EVERY_LOGIN, **options})


def format_options(options: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(word for name, value in options.items() if value for word in ("-o", f"{name}={value}"))


def format_target(node: Node) -> tuple[str, ...]:
    """The arguments of ssh that name a node."""
    port = () if node.port is None else ("-p", str(node.port))
    user = () if node.user is None else ("-l", node.user)
    return (*port, *user, "--", node.target)
