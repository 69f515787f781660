"""Faults: host names that do not resolve, or resolve to the wrong address."""

from typing import Annotated, ClassVar

from aboard.core.cluster.node_sets import expand_node_set
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults import file_edits
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox

_HOSTS = "/etc/hosts"


@dataclass(frozen=True, kw_only=True)
class UnresolvedName(file_edits.FileEditFault):
    """This host cannot resolve the name of a peer."""

    name: ClassVar[str] = "unresolved"
    peer: Annotated[str, "The peers, such as n1 or n[1-3]."]

    def check(self, box: Sandbox, host: Host) -> None:
        self._peers(box)

    def inject(self, box: Sandbox, host: Host) -> None:
        peers = self._peers(box)
        file_edits.edit_lines(host, self.key, _HOSTS, drop=lambda line: bool(peers & set(_parse_names(line))))

    def _peers(self, box: Sandbox) -> set[str]:
        """Their names on all networks: n1, and n1i on the fabric."""
        hosts = [box.host(name).name for name in expand_node_set(self.peer, where="--peer")]
        return {alias for name in hosts for alias in (name, f"{name}i")}


@dataclass(frozen=True, kw_only=True)
class OwnNameOnLoopback(file_edits.FileEditFault):
    """The host's own name resolves to 127.0.1.1, as Debian's installer sets it: peers cannot use that address."""

    name: ClassVar[str] = "own-name-on-loopback"

    def inject(self, box: Sandbox, host: Host) -> None:
        line = f"127.0.1.1 {host.name}"
        file_edits.edit_lines(host, self.key, _HOSTS, first=[line], drop=lambda other: host.name in _parse_names(other))


def _parse_names(line: str) -> list[str]:
    """The host names in a line of a hosts file."""
    return line.partition("#")[0].split()[1:]
