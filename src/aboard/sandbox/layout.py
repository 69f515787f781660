"""The layout of a practice cluster: its hosts, their names and addresses."""

import re
from functools import cached_property

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass

HEAD = "head"
MOST_NODES = 250
_PER_SUBNET = 250


@dataclass(frozen=True, kw_only=True)
class HostAddress:
    """One host: `eth0` on the management network, `eth1` on the fabric if there is one."""

    name: str
    number: int
    address: str
    fabric_address: str | None

    @property
    def mac(self) -> str:
        """The same after a power cycle, like a real NIC's."""
        return _format_mac(0x77, self.number)

    @property
    def fabric_mac(self) -> str:
        return _format_mac(0x78, self.number)


@dataclass(frozen=True, kw_only=True)
class SandboxLayout:
    """A practice cluster of `head` and n1…nN."""

    name: str
    nodes: int
    slots: int
    fabric: bool
    slurm: bool = False
    #: Bare cloud VMs: an admin key, and no user key, shared directory or environment.
    bare: bool = False
    #: `crew` has the same home directory on all hosts.
    shared_home: bool = False
    #: `crew` can run containers with Apptainer and Podman.
    containers: bool = False

    def __post_init__(self) -> None:
        validate_name(self.name)
        if not 1 <= self.nodes <= MOST_NODES:
            raise SandboxError(sandbox.NODES, f"{self.nodes} nodes requested; a sandbox can have 1 to {MOST_NODES}")
        if self.slots < 1:
            raise SandboxError(sandbox.SLOTS, f"{self.slots} slots requested; a node needs at least 1")

    @cached_property
    def places(self) -> dict[str, HostAddress]:
        """Every host by name, `head` first."""
        names = [HEAD, *(f"n{i}" for i in range(1, self.nodes + 1))]
        return {name: self._place(name, number) for number, name in enumerate(names)}

    def _place(self, name: str, number: int) -> HostAddress:
        # n1 is .0.1, as a reader expects; the head is outside the nodes' range, at .255.1.
        subnet, last = divmod(number - 1, _PER_SUBNET) if number else (255, 0)
        tail = f"{subnet}.{last + 1}"
        return HostAddress(
            name=name, number=number, address=f"10.77.{tail}", fabric_address=f"10.78.{tail}" if self.fabric else None
        )


def validate_name(name: str) -> str:
    """Returns a valid name; it becomes a directory name, so it must not contain a path."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,40}", name):
        raise SandboxError(
            sandbox.NAME, f"{name!r} is not a valid sandbox name: use lowercase letters, digits, '.', '_' and '-'"
        )
    return name


def _format_mac(network: int, number: int) -> str:
    # 02 marks an address as locally administered: it cannot collide with a real NIC's.
    return f"02:10:{network:02x}:00:{number >> 8:02x}:{number & 0xFF:02x}"
