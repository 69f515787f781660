"""Logins before trust exists: which settings ssh uses for a node, its host key, and a shell on it."""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from aboard.core.cluster.node import Node
from aboard.core.trust.public_keys import PublicKey, parse_known_host
from aboard.diagnoses import Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.lazy_dataclass import dataclass
from aboard.transport.node_dialer import DIAL_SECONDS
from aboard.transport.shell.node_shell import NodeShell, open_shell
from aboard.transport.ssh import print_settings
from aboard.transport.ssh_arguments import STREAM, build_ssh_argv, format_target
from aboard.transport.ssh_log import SshLoginLog, classify_failure
from aboard.transport.subprocess_stream import start_program

# sshd's LoginGraceTime is 120 s; somebody has to find the password.
PASSWORD_SECONDS = 300.0
# No master connection answers in place of a login, and ssh edits no known_hosts.
LOGIN = {**STREAM, "ControlPath": "none", "UpdateHostKeys": "no"}
_SCAN = {
    **LOGIN,
    "StrictHostKeyChecking": "accept-new",
    "GlobalKnownHostsFile": "/dev/null",
    "HashKnownHosts": "no",
    "CheckHostIP": "no",
    "VerifyHostKeyDNS": "no",
    "PreferredAuthentications": "none",
    "PubkeyAuthentication": "no",
}
_ASK = {"BatchMode": "no", "PreferredAuthentications": "publickey,keyboard-interactive,password"}


@dataclass(frozen=True, kw_only=True)
class SshSettings:
    """What `ssh -G` prints for a node, of what matters here. `jumps` are the jump hosts, the nearest first."""

    host: str
    user: str
    port: int
    identity_files: tuple[Path, ...]
    known_hosts: Path
    jumps: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScannedHostKey:
    """A host key, and the name under which ssh looks it up."""

    name: str
    key: PublicKey


async def read_settings(node: Node) -> SshSettings:
    """Asks ssh for the settings that it would use."""
    code, output, errors = await print_settings(*format_target(node))
    if code != 0:
        lines = errors.strip().splitlines()
        raise Unreachable(UnreachableReason.UNKNOWN, lines[-1] if lines else "ssh -G failed")
    return parse_settings(output)


def parse_settings(text: str) -> SshSettings:
    """Parses the output of `ssh -G`."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value)
    known = values.get("userknownhostsfile", [""])[0].split()
    files = [each for each in values.get("identityfile", []) if each != "none" and "%" not in each]
    jump = values.get("proxyjump", ["none"])[0]
    return SshSettings(
        host=values["hostname"][0],
        user=values["user"][0],
        port=int(values["port"][0]),
        identity_files=tuple(_expand_home(each) for each in files) or (_expand_home("~/.ssh/id_ed25519"),),
        known_hosts=_expand_home(known[0] if known else "~/.ssh/known_hosts"),
        jumps=() if jump == "none" else tuple(jump.split(",")),
    )


async def scan_host_key(node: Node, *, types: Sequence[str] = (), extra: Sequence[str] = ()) -> ScannedHostKey:
    """Learns a host key without logging in and without storing it; works through jump hosts."""
    with tempfile.TemporaryDirectory(prefix="aboard-trust-") as folder:
        path = Path(folder, "known_hosts")
        argv = build_scan_command(node, path, types=types, extra=extra)
        stream = await start_program(argv, SshLoginLog().phase_of)
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                while await stream.read(65536):
                    pass
        except TimeoutError:
            raise Unreachable(UnreachableReason.TIMED_OUT, f"no host key within {DIAL_SECONDS:g} s") from None
        finally:
            ending = await stream.close()
        found = _read_scanned_key(path)
    if found is None:
        raise Unreachable(*classify_failure(ending))
    return found


async def open_login(
    node: Node, *, prelude: str, identity: Path | None = None, extra: Sequence[str] = (), ask: bool = False
) -> NodeShell:
    """A shell on the node, with a verified host key; with `ask`, ssh may ask for a password on the terminal."""
    argv = build_login_command(node, identity=identity, extra=extra, ask=ask)
    seconds = PASSWORD_SECONDS if ask else DIAL_SECONDS
    return await open_shell(argv, prelude=prelude, seconds=seconds, keep_terminal=ask)


def build_scan_command(
    node: Node, known_hosts: Path, *, types: Sequence[str] = (), extra: Sequence[str] = ()
) -> tuple[str, ...]:
    """The command that writes the node's host key to an empty file, and logs in nowhere."""
    own = {"UserKnownHostsFile": f'"{known_hosts}"', "HostKeyAlgorithms": ",".join(_list_algorithms(types))}
    return build_ssh_argv(node, "true", {**_SCAN, **own}, first=extra, verbose=True)


def build_login_command(
    node: Node, *, identity: Path | None = None, extra: Sequence[str] = (), ask: bool = False
) -> tuple[str, ...]:
    """The command that opens a shell on the node; see `open_login`."""
    with_key = () if identity is None else ("-i", str(identity))
    # Without IdentitiesOnly, sshd may have enough of the agent's keys before it sees this one.
    options = {**LOGIN, "IdentitiesOnly": "yes" if with_key else "", **(_ASK if ask else {})}
    return build_ssh_argv(node, "exec sh", options, first=(*extra, *with_key), verbose=True)


async def open_local_shell(*, prelude: str) -> NodeShell:
    """A shell on this machine."""
    return await open_shell(("sh",), prelude=prelude, seconds=DIAL_SECONDS)


def _read_scanned_key(path: Path) -> ScannedHostKey | None:
    """The key that ssh stored, under the name that it looks up: with an alias, a port, or neither."""
    lines = path.read_text().splitlines() if path.exists() else []
    known = [each for each in map(parse_known_host, lines) if each is not None]
    return ScannedHostKey(name=known[-1][0], key=known[-1][1]) if known else None


def _list_algorithms(types: Sequence[str]) -> list[str]:
    """The signature algorithms of key types: RSA keys no longer sign with SHA-1."""
    return [each for kind in types for each in (("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,))]


def _expand_home(path: str) -> Path:
    return Path(os.path.expanduser(path.strip('"')))  # noqa: PTH111 - Path.expanduser raises for an unknown user
