"""`--mesh`: every node can log in to every node. Each has its own key; private keys stay where they are."""

import asyncio
import re
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import TypeVar

from aboard.commands.trust.home_files import AUTHORIZED_KEYS, KNOWN_HOSTS, HomeFiles, quote_path
from aboard.commands.trust.node_access import TrustObserver, explain_failure
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_sets import fold_names
from aboard.core.trust.public_keys import PublicKey, find_known_keys, format_known_name, list_authorized_keys
from aboard.core.trust.trust_report import MeshReport
from aboard.diagnoses import AboardError, Finding, Unreachable
from aboard.diagnoses.nodes import trust
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.transport.shell.ssh_login import SshSettings, scan_host_key
from aboard.transport.ssh_arguments import build_login_options

T = TypeVar("T")
# Up to this many nodes, every pair is tested.
ALL_PAIRS = 32
_LOGIN_SECONDS = 15.0
_REPLY = re.compile(r"(yes|no) (\d{1,5}) ?(.*)")
# One after the other, so that no sshd sees more than a few logins at once.
TRY_LOGIN = f"""\
try_login() {{
    if said=$(ssh {" ".join(build_login_options({"UpdateHostKeys": "no", "ControlPath": "none"}))} \\
        -p "$2" -l "$3" -- "$4" true 2>&1 </dev/null)
    then echo "yes $1"
    else echo "no $1 $(printf %s "$said" | tail -n 1)"
    fi
}}"""


@dataclass(frozen=True, kw_only=True)
class MeshNode:
    """A node that this machine can log in to."""

    node: Node
    settings: SshSettings
    files: HomeFiles

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which peers look up its host key; addresses of this machine's own loopback are not theirs."""
        hosts = dict.fromkeys((self.node.name, self.node.target, self.settings.host, self.node.fabric_address))
        usable = [host for host in hosts if host and not _is_loopback(host)]
        return tuple(dict.fromkeys(format_known_name(host, self.settings.port) for host in usable))


@dataclass(frozen=True, kw_only=True)
class MeshKeys:
    """A node's own key and its host key."""

    user: PublicKey
    host: PublicKey


async def connect_mesh(nodes: Sequence[MeshNode], observer: TrustObserver) -> MeshReport:
    """Exchanges the nodes' public keys and host keys, then logs in from each node to the others."""
    findings: list[Finding] = []
    observer.begin_phase("collecting the nodes' public keys")
    created: set[str] = set()

    async def attempt(each: MeshNode, work: Awaitable[T]) -> T | None:
        try:
            return await work
        except AboardError as error:
            findings.append(explain_failure(each.node, error))
            return None

    collected = await asyncio.gather(*(attempt(each, _collect_keys(each, created)) for each in nodes))
    keys = {each.node.name: found for each, found in zip(nodes, collected, strict=True) if found is not None}
    joined = [each for each in nodes if each.node.name in keys]
    observer.begin_phase("exchanging keys between the nodes")
    changed = await asyncio.gather(*(attempt(each, _add_keys(each, joined, keys, findings)) for each in joined))
    observer.begin_phase("logging in between the nodes")
    results = await asyncio.gather(*(_try_logins(index, joined) for index in range(len(joined))))
    findings += [finding for _, found in results for finding in found]
    tested = [list_peers(index, len(joined)) for index in range(len(joined))]
    return MeshReport(
        findings=tuple(findings),
        created=len(created),
        changed=sum(count or 0 for count in changed) + len(created),
        logins=sum(count for count, _ in results),
        tested=sum(map(len, tested)),
        possible=len(joined) ** 2,
    )


def list_peers(index: int, count: int) -> list[int]:
    """The nodes that a node tries, itself included; above `ALL_PAIRS` the next one and a few far ones."""
    if count <= ALL_PAIRS:
        return [(index + step) % count for step in range(count)]
    return [(index + step) % count for step in dict.fromkeys((1, count // 4, count // 2, count - 2))]


async def _collect_keys(each: MeshNode, created: set[str]) -> MeshKeys:
    key = await each.files.find_key()
    if key is None:
        key = await each.files.create_key()
        created.add(each.node.name)
    return MeshKeys(user=key, host=await _read_host_key(each))


async def _read_host_key(each: MeshNode) -> PublicKey:
    """The host key that ssh verified when it logged in: its log has the fingerprint, a scan has the whole key."""
    verified = each.files.shell.host_key
    if verified is None:
        raise Unreachable(UnreachableReason.UNKNOWN, "ssh did not print the host key that it verified")
    kind, fingerprint = verified
    scanned = await scan_host_key(each.node, types=(kind.removesuffix("-cert-v01@openssh.com"),))
    if scanned.key.fingerprint != fingerprint:
        seen = f"the node presented {fingerprint} first, and then {scanned.key.fingerprint}"
        raise Unreachable(UnreachableReason.HOST_KEY_CHANGED, seen)
    return scanned.key


async def _add_keys(
    each: MeshNode, joined: Sequence[MeshNode], keys: Mapping[str, MeshKeys], findings: list[Finding]
) -> int:
    """Adds what a node lacks; returns the number of new lines."""

    def choose_users(content: bytes) -> list[str]:
        present = set(list_authorized_keys(content))
        new = {keys[peer.node.name].user: peer.node.name for peer in joined}
        return [key.format_line(name) for key, name in new.items() if key not in present]

    def choose_hosts(content: bytes) -> list[str]:
        return [line for peer in joined for line in _format_host_lines(peer, keys[peer.node.name].host, content)]

    hosts = await each.files.add_lines(KNOWN_HOSTS, choose_hosts)
    content = (await each.files.read(KNOWN_HOSTS)).content or b""
    for peer in joined:
        other = [name for name in peer.names if keys[peer.node.name].host not in find_known_keys(content, [name])]
        if other:
            seen = f"its known_hosts has another key for {', '.join(other)}"
            fix = trust.MESH_KNOWN.fix(peer=other[0], node=each.node.name)
            findings.append(trust.MESH_KNOWN.finding(nodes=(each.node.name,), seen=seen, fix=fix))
    return hosts + await each.files.add_lines(AUTHORIZED_KEYS, choose_users)


def _format_host_lines(peer: MeshNode, key: PublicKey, content: bytes) -> Iterator[str]:
    """The line for the names that the file doesn't know; another key under a name is never overridden."""
    names = [
        name for name in peer.names if not any(known.type == key.type for known in find_known_keys(content, [name]))
    ]
    if names:
        yield f"{','.join(names)} {key.type} {key.blob}"


async def _try_logins(index: int, joined: Sequence[MeshNode]) -> tuple[int, list[Finding]]:
    """Logs in from one node to others; returns how many worked, and the finding if some did not."""
    each, peers = joined[index], [joined[peer] for peer in list_peers(index, len(joined))]
    lines = [
        f"try_login {number} {peer.settings.port} {quote_path(peer.settings.user)} {quote_path(peer.node.target)}"
        for number, peer in enumerate(peers)
    ]
    script = "\n".join([TRY_LOGIN, *lines])
    try:
        reply = await each.files.shell.run(script, seconds=_LOGIN_SECONDS * (len(peers) + 1))
    except Unreachable as error:
        return 0, [explain_failure(each.node, error)]
    matches = map(_REPLY.fullmatch, reply.output.decode("utf-8", "replace").splitlines())
    said = {int(match[2]): (match[1] == "yes", Untrusted(match[3])) for match in matches if match}
    silent = (False, Untrusted("no reply"))
    failed = {
        peer.node.name: said.get(number, silent)[1]
        for number, peer in enumerate(peers)
        if not said.get(number, silent)[0]
    }
    if not failed:
        return len(peers), []
    first = next(iter(failed))
    finding = trust.MESH_LOGIN.finding(
        nodes=(each.node.name,),
        seen=f"can't log in to {fold_names(list(failed))}: {failed[first].visible(200)}",
        fix=trust.MESH_LOGIN.fix(
            peer=next(peer.node.target for peer in peers if peer.node.name == first), node=each.node.name
        ),
    )
    return len(peers) - len(failed), [finding]


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
