"""Firewalls between hosts, from one that swallows packets to one that says no."""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from aboard.core.errors import SandboxError
from aboard.core.nodeset import expand
from aboard.core.words import MAX_PORT
from aboard.sandbox.faults import nft
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.nft import Network, Way
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox

_NEW_CONNECTION = "tcp flags & (fin | syn | rst | ack) == syn "
_ANSWERS = {
    "tcp-reset": "meta l4proto tcp reject with tcp reset",
    "host-prohibited": "meta nfproto ipv4 reject with icmp type host-prohibited",
}


@dataclass(frozen=True, kw_only=True)
class _Firewall(Fault):
    ports: Annotated[str | None, "TCP ports, as 29500 or 1024-65535 or 22,80; all traffic when left out."] = None
    peer: Annotated[str | None, "Only from or to these hosts, as n1 or n[1-3]."] = None
    way: Annotated[Way, "Connections that come in, go out, or both."] = "in"
    network: Annotated[Network, "Which network."] = "both"
    open_too: Annotated[bool, "With --ports: cut connections that are open, too."] = False

    def check(self, box: Sandbox, host: Host) -> None:
        nft.require()
        self.chains(box)

    def inject(self, box: Sandbox, host: Host) -> None:
        nft.load(host, self.key, self.chains(box))

    def heal(self, box: Sandbox, host: Host) -> None:
        nft.unload(host, self.key)

    def chains(self, box: Sandbox) -> str:
        """The rules, as nft reads them."""
        return nft.filters(self.way, self._ports() + self._answer(), network=self.network, peers=self._peers(box))

    def _answer(self) -> str:
        raise NotImplementedError

    def _ports(self) -> str:
        if self.ports is None:
            return ""
        # Answers to connections of this host itself come to ports of the same range: only a first packet tells.
        return f"tcp dport {{ {', '.join(_ranges(self.ports))} }} {'' if self.open_too else _NEW_CONNECTION}"

    def _peers(self, box: Sandbox) -> list[str]:
        if self.peer is None:
            return []
        hosts = [box.host(name) for name in expand(self.peer, where="--peer")]
        return [address for host in hosts for address in (host.address, host.fabric_address) if address]


@dataclass(frozen=True, kw_only=True)
class Drop(_Firewall):
    """A firewall swallows packets: whoever connects waits until a time-out."""

    name: ClassVar[str] = "drop"

    def _answer(self) -> str:
        return "drop"


@dataclass(frozen=True, kw_only=True)
class Reject(_Firewall):
    """A firewall says no: connections are refused, or there is no route to the host."""

    name: ClassVar[str] = "reject"
    answer: Annotated[
        Literal["tcp-reset", "host-prohibited"], "What it says: `Connection refused` or `No route to host`."
    ] = "tcp-reset"

    def _answer(self) -> str:
        return _ANSWERS[self.answer]


def _ranges(ports: str) -> list[str]:
    found = []
    for part in ports.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high <= MAX_PORT:
            raise SandboxError(
                "sandbox-fault-option",
                f"{part.strip()!r} is no port and no range of ports",
                fix="write ports as 29500, 1024-65535 or 22,29500-29600",
            )
        found.append(f"{low}-{high}" if high > low else str(low))
    return found
