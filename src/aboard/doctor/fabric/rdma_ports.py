"""RDMA ports, InfiniBand and RoCE, as the kernel shows them under /sys/class/infiniband."""

import re
from collections import defaultdict
from collections.abc import Mapping
from ipaddress import AddressValueError, IPv6Address

from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeFiles, ProbeParseError
from aboard.doctor.shared.answer_text import extract_files
from aboard.lazy_dataclass import dataclass

INFINIBAND = "InfiniBand"
ETHERNET = "Ethernet"
ROCE_V2 = "RoCE v2"


@dataclass(frozen=True, kw_only=True)
class Gid:
    """One entry of a port's table of addresses."""

    index: int
    kind: str
    address: str
    interface: str

    @property
    def routable(self) -> bool:
        """Whether it is a RoCE v2 address reachable from another subnet, not the link-local one that every port has."""
        try:
            address = IPv6Address(self.address)
        except AddressValueError:
            return False
        return self.kind == ROCE_V2 and not address.is_link_local and int(address) != 0

    @property
    def ipv4(self) -> bool:
        return self.address.startswith("0000:0000:0000:0000:0000:ffff:")


@dataclass(frozen=True, kw_only=True)
class RdmaPort:
    """One port of one adapter. `rate` is in Gb/s, 0 when unknown; counters are None where the kernel has none."""

    device: str
    number: int
    state: str
    physical: str
    layer: str
    rate: float
    mode: str
    link_downed: int | None = None
    symbol_errors: int | None = None
    gids: tuple[Gid, ...] = ()

    @property
    def name(self) -> str:
        return self.device if self.number == 1 else f"{self.device}:{self.number}"

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def speed(self) -> str:
        return f"{self.rate:g} Gb/s ({self.mode})"

    @property
    def gid_index(self) -> int | None:
        """The index of its first RoCE v2 address, IPv4 before IPv6: the right NCCL_IB_GID_INDEX."""
        routable = sorted((gid for gid in self.gids if gid.routable), key=lambda gid: (not gid.ipv4, gid.index))
        return routable[0].index if routable else None


def parse_rdma_ports(answer: ProbeAnswer) -> tuple[RdmaPort, ...]:
    """The ports that NCCL could use, in the order of their names; none without an adapter."""
    ports: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    kinds: dict[str, str] = {}
    for path, text in extract_files(answer).items():
        at = re.fullmatch(r"/sys/class/infiniband/([\w.-]{1,64})/(?:node_type|ports/([0-9]{1,3})/(.+))", path)
        if at is None:
            continue
        if at[2] is None:
            kinds[at[1]] = text.strip()
        else:
            ports[at[1], int(at[2])][at[3]] = text.strip()
    found = (_parse_port(device, number, files) for (device, number), files in ports.items() if _is_hca(kinds, device))
    return tuple(sorted((port for port in found if port.layer), key=_get_sort_key))


def _is_hca(kinds: Mapping[str, str], device: str) -> bool:
    """On-board iWARP cards ("4: RNIC"), which many servers have, are of no use to NCCL."""
    return kinds.get(device, "1: CA") == "1: CA"


def _get_sort_key(port: RdmaPort) -> tuple[str, int, int]:
    """mlx5_2 before mlx5_10."""
    number = re.search(r"([0-9]{1,9})$", port.device)
    return (port.device.rstrip("0123456789"), int(number[1]) if number else 0, port.number)


def _parse_port(device: str, number: int, files: Mapping[str, str]) -> RdmaPort:
    state = re.fullmatch(r"[0-9]: ([A-Z_]{1,20})", files.get("state", ""))
    if state is None:
        raise ProbeParseError(f"{device} port {number} has no readable state")
    physical = re.fullmatch(r"[0-9]: (\w{1,40})", files.get("phys_state", ""))
    rate = re.fullmatch(r"([0-9]{1,5}(?:\.[0-9]{1,3})?) Gb/sec \(([0-9]{1,2}X(?: \w{1,6})?)\)", files.get("rate", ""))
    return RdmaPort(
        device=device,
        number=number,
        state=state[1],
        physical=physical[1] if physical else "unknown",
        layer=_match_or_empty(f"{INFINIBAND}|{ETHERNET}", files.get("link_layer", "")),
        rate=float(rate[1]) if rate else 0.0,
        mode=rate[2] if rate else "unknown",
        link_downed=_parse_counter(files.get("counters/link_downed")),
        symbol_errors=_parse_counter(files.get("counters/symbol_error")),
        gids=tuple(_parse_gids(files)),
    )


def _parse_counter(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,20}", text) else None


def _parse_gids(files: Mapping[str, str]) -> list[Gid]:
    """Empty entries are unreadable (the kernel returns EINVAL), so they have no type here."""
    found = []
    for name, kind in files.items():
        at = re.fullmatch(r"gid_attrs/types/([0-9]{1,4})", name)
        if at:
            interface = _match_or_empty(r"[\w.:@+-]{1,32}", files.get(f"gid_attrs/ndevs/{at[1]}", ""))
            address = _match_or_empty(r"[0-9A-Fa-f:.]{2,45}", files.get(f"gids/{at[1]}", ""))
            found.append(
                Gid(
                    index=int(at[1]), kind=_match_or_empty(r"[\w/ .]{1,20}", kind), address=address, interface=interface
                )
            )
    return sorted(found, key=lambda gid: gid.index)


def _match_or_empty(pattern: str, text: str) -> str:
    return text if re.fullmatch(pattern, text) else ""


_PORT_FILES = (
    *("state", "phys_state", "link_layer", "rate", "counters/link_downed", "counters/symbol_error"),
    *("gids/*", "gid_attrs/types/*", "gid_attrs/ndevs/*"),
)
PORTS = Probe(
    name="rdma-ports",
    question=ProbeFiles(
        globs=(
            "/sys/class/infiniband/*/node_type",
            *(f"/sys/class/infiniband/*/ports/*/{file}" for file in _PORT_FILES),
        )
    ),
    parse=parse_rdma_ports,
)
