"""`aboard trust`: pins the nodes' host keys, then installs this machine's key where it does not log in yet."""

import asyncio
import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic

from aboard.commands.trust.home_files import AUTHORIZED_KEYS, PRELUDE, HomeFiles, quote_path
from aboard.commands.trust.host_keys import FingerprintFile, HostKeyPinning, HostToPin
from aboard.commands.trust.mesh import MeshNode, connect_mesh
from aboard.commands.trust.node_access import Access, NodeLogins, TrustObserver, explain_failure, explain_refusal
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_sets import fold_names
from aboard.core.text.input_text import find_host_error
from aboard.core.trust.public_keys import PublicKey, list_authorized_keys, parse_public_key
from aboard.core.trust.trust_report import TrustedNode, TrustReport
from aboard.diagnoses import AboardError, Finding, Unreachable
from aboard.diagnoses.nodes import trust
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass
from aboard.record.trust_record import TrustRecords
from aboard.transport.shell.node_shell import NodeShell
from aboard.transport.shell.ssh_login import SshSettings, open_local_shell, read_settings

_DEFAULT = "id_ed25519"


@dataclass(frozen=True, kw_only=True)
class HeadKey:
    """The public key, its comment for authorized_keys, and the path of the private key if it was created now."""

    key: PublicKey
    comment: str
    created: Path | None = None


async def ensure_head_key(head: HomeFiles, files: Sequence[Path]) -> HeadKey:
    """The first key that works without a question, of those that ssh tries for a node; without any, a new one."""
    locked = []
    for path in files:
        quoted = quote_path(str(path))
        reply = await head.shell.run(f"[ -f {quoted} ] && aboard_key {quoted}")
        if key := _parse_key(reply.output):
            return key
        locked += [path] if (await head.shell.run(f"[ -f {quoted} ]")).code == 0 else []
    # An agent holds keys that have a passphrase, and keys without a file.
    agent = (await head.shell.run("ssh-add -L 2>/dev/null")).output
    for line in agent.splitlines():
        if key := _parse_key(line):
            return key
    if locked:
        seen = f"{locked[0]} has a passphrase, and no ssh agent holds the key"
        raise AboardError(trust.KEY_LOCKED, seen, file=locked[0])
    path = next((each for each in files if each.name == _DEFAULT), files[0])
    made = await head.create_key(str(path))
    return HeadKey(key=made, comment="aboard", created=path)


def _parse_key(output: bytes) -> HeadKey | None:
    """A key that logs in unattended: one on a security key waits for a touch."""
    text = output.decode("utf-8", "replace").strip()
    key = parse_public_key(text)
    if key is None or key.type.startswith("sk-"):
        return None
    comment = ""
    with contextlib.suppress(IndexError):
        comment = text.split()[2]
    return HeadKey(key=key, comment=comment)


HEAD = "this machine"


async def trust_cluster(
    cluster: Cluster,
    records: TrustRecords,
    access: Access,
    observer: TrustObserver,
    *,
    file: FingerprintFile | None = None,
    mesh: bool = False,
) -> TrustReport:
    """Sets up logins to all nodes; a node that fails gets a finding and does not stop the others."""
    # In a mesh, nodes log in to this machine too, if it is one of them. A machine with two names is set up once.
    logins_by_target = {
        (node.target, node.user, node.port): replace(node, transport=TransportKind.SSH)
        for node in reversed(cluster.nodes)
        if mesh or node.transport is TransportKind.SSH
    }
    nodes = list(reversed(logins_by_target.values()))
    if any(node.transport is TransportKind.SLURM for node in cluster):
        names = fold_names(node.name for node in cluster)
        raise AboardError(trust.SLURM_NODES, f"Aboard reaches {names} by srun, as part of the Slurm job", nodes=names)
    if not nodes or (len(cluster) == 1 and cluster.nodes[0].transport is TransportKind.LOCAL):
        raise AboardError(trust.NO_NODES, "the only node is this machine")
    began = monotonic()
    async with AsyncExitStack() as stack:
        stack.enter_context(records.lock())
        shell = await open_local_shell(prelude=PRELUDE)
        stack.push_async_callback(shell.close)
        logins = NodeLogins()
        stack.push_async_callback(logins.close)
        setup = TrustSetup(nodes, records, HomeFiles(HEAD, shell, records.head()), logins, access, file, observer)
        await setup.run()
        report = await connect_mesh(setup.list_mesh_nodes(), observer) if mesh else None
        findings = [*setup.findings.values(), *(report.findings if report else ())]
        return TrustReport(
            nodes=tuple(
                TrustedNode(name=node.name, reached=node.name in setup.shells, installed=node.name in setup.installed)
                for node in nodes
            ),
            findings=tuple(findings),
            pinned=tuple(setup.pinning.pinned),
            created=None if setup.created is None else str(setup.created),
            mesh=report,
            seconds=monotonic() - began,
        )


class TrustSetup:
    """One run: `shells` are the nodes that this machine's own key reaches, `findings` the ones that failed."""

    def __init__(
        self,
        nodes: list[Node],
        records: TrustRecords,
        head: HomeFiles,
        logins: NodeLogins,
        access: Access,
        file: FingerprintFile | None,
        observer: TrustObserver,
    ) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._records = records
        self._head = head
        self._logins = logins
        self._access = access
        self._observer = observer
        self._settings: dict[str, SshSettings] = {}
        self.pinning = HostKeyPinning(head, logins, access, file, observer)
        self.shells: dict[str, NodeShell] = {}
        self.findings: dict[str, Finding] = {}
        self.installed: set[str] = set()
        self.created: Path | None = None

    async def run(self) -> None:
        self._observer.begin_phase("reading ssh's settings")
        await asyncio.gather(*map(self._read_settings, self._nodes.values()))
        await self._pin_jump_hosts()
        self._observer.begin_phase("logging in")
        refused = await self._log_in(self._settings)
        unknown = [name for name in refused if refused[name].reason is UnreachableReason.HOST_KEY_UNKNOWN]
        if unknown:
            self._observer.begin_phase("reading host keys")
            await self.pinning.pin([self._describe_host(name) for name in unknown])
            self.findings |= {name: self.pinning.findings[name] for name in unknown if name in self.pinning.findings}
            self._observer.begin_phase("logging in")
            again = await self._log_in(name for name in unknown if name not in self.findings)
            refused = {name: error for name, error in refused.items() if name not in unknown} | again
        keyless = {name: each for name, each in refused.items() if each.reason is UnreachableReason.KEY_REFUSED}
        await self._install_key(keyless)
        for name, error in refused.items():
            if error.reason is UnreachableReason.HOST_KEY_CHANGED:
                self.findings[name] = await self.pinning.explain_change(self._describe_host(name))
            elif error.reason is not UnreachableReason.KEY_REFUSED:
                self.findings[name] = explain_failure(self._nodes[name], error)

    def list_mesh_nodes(self) -> list[MeshNode]:
        return [
            MeshNode(
                node=self._nodes[name],
                settings=self._settings[name],
                files=HomeFiles(name, shell, self._records.of_node(self._nodes[name])),
            )
            for name, shell in self.shells.items()
        ]

    async def _read_settings(self, node: Node) -> None:
        try:
            self._settings[node.name] = await read_settings(node)
        except Unreachable as error:
            self.findings[node.name] = explain_failure(node, error)

    async def _pin_jump_hosts(self) -> None:
        """Pins unknown jump hosts first, the nearest before the ones behind it: ssh reaches nodes only through them."""
        routes = {settings.jumps for settings in self._settings.values() if settings.jumps}
        for depth in range(max(map(len, routes), default=0)):
            hops = {route[depth]: route[:depth] for route in sorted(routes) if len(route) > depth}
            hosts = [await self._inspect_jump_host(hop, through) for hop, through in hops.items()]
            await self.pinning.pin([host for host in hosts if host is not None])
        # Nodes behind a refused jump host stay out: its finding explains all of them.
        refused = self.pinning.findings
        self.findings |= refused
        for name, settings in list(self._settings.items()):
            if any(_parse_jump_host(hop).name in refused for hop in settings.jumps):
                del self._settings[name]

    async def _inspect_jump_host(self, hop: str, through: tuple[str, ...]) -> HostToPin | None:
        """The jump host, if its key is unknown; other trouble with it shows at the nodes behind it."""
        node = _parse_jump_host(hop)
        if find_host_error(node.name) is not None:
            return None
        try:
            settings = await read_settings(node)
            shell = await self._logins.open(node, through=through)
        except Unreachable as error:
            if error.reason is UnreachableReason.HOST_KEY_UNKNOWN:
                return HostToPin(node=node, settings=settings, through=through)
        else:
            await shell.close()
        return None

    async def _log_in(self, names: Iterable[str]) -> dict[str, Unreachable]:
        """Opens shells with the user's own ssh; returns the errors."""
        refused = {}

        async def log_in(name: str) -> None:
            try:
                self.shells[name] = await self._logins.open(self._nodes[name])
            except Unreachable as error:
                refused[name] = error

        await asyncio.gather(*map(log_in, names))
        return {name: refused[name] for name in self._nodes if name in refused}

    async def _install_key(self, names: Mapping[str, Unreachable]) -> None:
        """Installs the key with whatever access there is: all at once by the admin key, one by one by password."""
        if not names:
            return
        self._observer.begin_phase("installing the key")
        by_files: dict[tuple[Path, ...], HeadKey] = {}
        for files in dict.fromkeys(self._settings[name].identity_files for name in names):
            by_files[files] = await ensure_head_key(self._head, files)
            self.created = self.created or by_files[files].created
        keys = {name: by_files[self._settings[name].identity_files] for name in names}
        left = dict.fromkeys(names)
        if self._access.identity is not None:
            done = await asyncio.gather(*(self._install(name, keys[name]) for name in names))
            left = dict.fromkeys(name for name, is_done in zip(names, done, strict=True) if not is_done)
        asked = [name for name in left if self._access.may_ask(names[name])]
        for number, name in enumerate(asked, 1):
            self._observer.announce_password(name, number, len(asked))
            await self._install(name, keys[name], ask=True)
        for name in (each for each in left if each not in asked):
            self._refuse(name, f"the node accepts none of this machine's keys: {names[name].seen}")

    async def _install(self, name: str, head_key: HeadKey, *, ask: bool = False) -> bool:
        """Installs the key on one node and verifies it; False if the admin key is refused."""
        node = self._nodes[name]
        try:
            shell = await self._logins.open(node, identity=self._access.identity, ask=ask)
            files = HomeFiles(name, shell, self._records.of_node(node))
            line = head_key.key.format_line(head_key.comment)
            await files.add_lines(
                AUTHORIZED_KEYS, lambda content: [] if head_key.key in list_authorized_keys(content) else [line]
            )
            self.installed.add(name)
            await self._verify(node)
            await shell.close()
        except AboardError as error:
            is_key = isinstance(error, Unreachable) and error.reason is UnreachableReason.KEY_REFUSED
            if not is_key or name in self.installed:
                self.findings[name] = explain_failure(node, error)
            elif not ask and self._access.terminal:
                return False
            else:
                self._refuse(name, error.seen)
        return True

    async def _verify(self, node: Node) -> None:
        """Logs in as every later command will."""
        try:
            self.shells[node.name] = await self._logins.open(node)
        except Unreachable as error:
            if error.reason is not UnreachableReason.KEY_REFUSED:
                raise
            seen = f"the key is in ~/.ssh/authorized_keys, but: {escape_text(error.seen, 200)}"
            raise AboardError(trust.NOT_ACCEPTED, seen, node=node.name) from None

    def _refuse(self, name: str, seen: str) -> None:
        self.findings[name] = explain_refusal(self._nodes[name], self._access, seen)

    def _describe_host(self, name: str) -> HostToPin:
        return HostToPin(node=self._nodes[name], settings=self._settings[name])


def _parse_jump_host(hop: str) -> Node:
    """A jump host as `ssh -G` prints it: `user@host:port`, `[::1]:22`, or an ssh:// address."""
    user, _, rest = hop.removeprefix("ssh://").rpartition("@")
    bracketed = re.fullmatch(r"\[(.+)\](?::(\d{1,5}))?", rest) or re.fullmatch(r"([^:]+)(?::(\d{1,5}))?", rest)
    host, port = (bracketed[1], bracketed[2]) if bracketed else (rest, None)
    return Node(name=host, user=user or None, port=int(port) if port else None)
