"""Pins host keys that this machine has not seen: learned without logging in, then compared by the user or a file."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from aboard.commands.trust.home_files import HomeFiles
from aboard.commands.trust.node_access import Access, NodeLogins, TrustObserver, explain_failure
from aboard.core.cluster.node import Node
from aboard.core.text.input_text import format_count
from aboard.core.trust.expected_fingerprints import ExpectedFingerprints, list_key_types, matches_expected
from aboard.core.trust.file_changes import list_missing_lines
from aboard.core.trust.public_keys import find_known_keys
from aboard.core.trust.trust_report import NewHostKey
from aboard.diagnoses import AboardError, Finding, Unreachable
from aboard.diagnoses.nodes import trust
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.lazy_dataclass import dataclass
from aboard.transport.shell.ssh_login import ScannedHostKey, SshSettings, scan_host_key


@dataclass(frozen=True, kw_only=True)
class HostToPin:
    """A node or jump host whose key is unknown. `through` are the jump hosts that ssh_config doesn't know of."""

    node: Node
    settings: SshSettings
    through: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names that a file of fingerprints may have for it."""
        hosts = (self.node.name, self.node.target, self.settings.host)
        return (*hosts, *(f"[{host}]:{self.settings.port}" for host in hosts))


@dataclass(frozen=True, kw_only=True)
class FingerprintFile:
    """The user's file of fingerprints."""

    path: Path
    expected: ExpectedFingerprints


class HostKeyPinning:
    """Pins keys on the head, each once."""

    def __init__(
        self, head: HomeFiles, logins: NodeLogins, access: Access, file: FingerprintFile | None, observer: TrustObserver
    ) -> None:
        self._head = head
        self._logins = logins
        self._access = access
        self._file = file
        self._observer = observer
        self.pinned: list[NewHostKey] = []
        self.findings: dict[str, Finding] = {}

    async def pin(self, hosts: Sequence[HostToPin]) -> None:
        """Pins the hosts' keys; a host whose key is not accepted gets a finding."""
        self._refuse_unsaved(hosts)
        hosts = [host for host in hosts if host.node.name not in self.findings]
        scanned = await asyncio.gather(*map(self._scan, hosts))
        found = {host.node.name: key for host, key in zip(hosts, scanned, strict=True) if key is not None}
        if self._file is not None:
            accepted = [host for host in hosts if host.node.name in found and self._compare(host, found)]
        else:
            accepted = [host for host in hosts if host.node.name in found]
            self._ask(accepted, found)
        for path in dict.fromkeys(host.settings.known_hosts for host in accepted):
            own = [host for host in accepted if host.settings.known_hosts == path]
            lines = [_format_known_host(found[host.node.name]) for host in own]
            await self._head.add_lines(str(path), partial(list_missing_lines, lines))
            self.pinned += [NewHostKey(node=host.node.name, key=found[host.node.name].key) for host in own]

    async def explain_change(self, host: HostToPin) -> Finding:
        """The finding for a changed host key, with the old and the new fingerprint; the old one stays."""
        try:
            scanned = await scan_host_key(host.node)
        except Unreachable as error:
            return explain_failure(host.node, error)
        known = (await self._head.read(str(host.settings.known_hosts))).content or b""
        old = [key for key in find_known_keys(known, [scanned.name]) if key.type == scanned.key.type]
        was = ", ".join(key.fingerprint for key in old) or "another one"
        seen = f"known_hosts has {was}; the node presents {scanned.key.label} {scanned.key.fingerprint}"
        return explain_failure(host.node, Unreachable(UnreachableReason.HOST_KEY_CHANGED, seen))

    def _refuse_unsaved(self, hosts: Iterable[HostToPin]) -> None:
        """Where ssh_config has no file for host keys, each connection would be to whoever answers."""
        for host in hosts:
            if str(host.settings.known_hosts) in ("/dev/null", "none"):
                name = host.node.name
                seen = f"UserKnownHostsFile is {host.settings.known_hosts}"
                fix = trust.NO_KNOWN_HOSTS.fix(node=name)
                self.findings[name] = trust.NO_KNOWN_HOSTS.finding(nodes=(name,), seen=seen, fix=fix)

    async def _scan(self, host: HostToPin) -> ScannedHostKey | None:
        expected = self._file.expected.find(host.names) if self._file else ()
        extra = ("-J", ",".join(host.through)) if host.through else ()
        try:
            return await self._logins.retry(
                lambda: scan_host_key(host.node, types=list_key_types(expected) if expected else (), extra=extra)
            )
        except Unreachable as error:
            self.findings[host.node.name] = explain_failure(host.node, error)
            return None

    def _compare(self, host: HostToPin, found: Mapping[str, ScannedHostKey]) -> bool:
        assert self._file is not None  # noqa: S101 - the caller has one
        name, key = host.node.name, found[host.node.name].key
        expected = self._file.expected.find(host.names)
        if matches_expected(key, expected):
            return True
        presented = f"{key.label} {key.fingerprint}"
        if expected:
            wanted = ", ".join(dict.fromkeys(each.fingerprint for each in expected))
            seen = f"{self._file.path} has {wanted}, but the node presents {presented}"
            diagnosis = trust.FINGERPRINT_DIFFERS
        else:
            seen = f"{self._file.path} has no fingerprint of this node, which presents {presented}"
            diagnosis = trust.FINGERPRINT_MISSING
        fix = diagnosis.fix(node=name, file=self._file.path)
        self.findings[name] = diagnosis.finding(nodes=(name,), seen=seen, fix=fix)
        return False

    def _ask(self, hosts: Iterable[HostToPin], found: Mapping[str, ScannedHostKey]) -> None:
        new = [NewHostKey(node=host.node.name, key=found[host.node.name].key) for host in hosts]
        if not new:
            return
        if not self._access.terminal:
            seen = f"{format_count(len(new), 'host key')} not seen before, and there is no terminal to confirm them on"
            raise AboardError(trust.CONFIRM, seen, typed=self._access.typed)
        if not self._observer.confirm_host_keys(new):
            raise AboardError(trust.DECLINED, "the host keys were not confirmed")


def _format_known_host(scanned: ScannedHostKey) -> str:
    return f"{scanned.name} {scanned.key.type} {scanned.key.blob}"
