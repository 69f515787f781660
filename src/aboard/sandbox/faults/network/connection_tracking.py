"""Fault: a connection tracking table that is nearly full."""

import sys
from typing import Annotated, ClassVar

from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.network import nftables
from aboard.sandbox.faults.root_commands import run_as_root
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox

_ROOT = "/proc/sys/net/netfilter/nf_conntrack_"
_USUAL_SECONDS = 30
_SECONDS = 3600
# Approximate kernel memory of an entry, in bytes.
_ENTRY = 300
_MOST = 600_000
_NO_TABLE = "CONFIG_NF_CONNTRACK, CONFIG_NF_CT_NETLINK and CONFIG_NFT_CT"

# A host cannot lower the size of its table (nf_conntrack_max is read-only in all network namespaces but the first), so
# this fills it: packets to nobody, each to another port.
_FILL = f"""
import socket, sys
wanted = int(sys.argv[1])
count = lambda: int(open("{_ROOT}count").read())
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(wanted):
    if number % 1000 == 0 and count() >= wanted:
        break
    sender.sendto(b"", ("127.77.%d.%d" % (number // 60000, number // 6000000), 1024 + number % 60000))
sys.exit(0 if count() >= 0.99 * wanted else "only %d connections are tracked" % count())
"""
# Message 2 of netlink's subsystem 1 (ctnetlink) without attributes deletes all (libnetfilter_conntrack's flush).
_EMPTY = """
import socket, struct
kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
kernel.settimeout(10)
kernel.send(struct.pack("=IHHII", 20, (1 << 8) | 2, 5, 1, 0) + struct.pack("=BBH", 0, 0, 0))
code = struct.unpack("=i", kernel.recv(4096)[16:20])[0]
raise SystemExit(0 if code == 0 else "the kernel refused with %d" % code)
"""


@dataclass(frozen=True, kw_only=True)
class ConntrackFull(Fault):
    """The connection tracking table is nearly full, as on a busy firewall: new connections may be dropped."""

    name: ClassVar[str] = "conntrack-full"
    percent: Annotated[int, "How full the table is, in percent."] = 95

    def check(self, box: Sandbox, host: Host) -> None:
        nftables.require_nftables()
        if not 1 <= self.percent <= 99:  # noqa: PLR2004 - above, the host could not be reached any more
            raise SandboxError(sandbox.FAULT_OPTION, f"{self.percent} % is out of range", "conntrack-full")
        most = self._most(host)
        if most > _MOST:
            raise SandboxError(
                sandbox.FAULT_OPTION,
                f"this machine tracks up to {most:,} connections, so filling the table would take"
                f" {format_size(most * _ENTRY)} of memory",
                "conntrack-max",
                most=_MOST,
            )

    def inject(self, box: Sandbox, host: Host) -> None:
        # The kernel tracks connections only if a rule uses their state.
        nftables.load_table(
            host, self.key, "  chain output {\n    type filter hook output priority 0;\n    ct state new\n  }\n"
        )
        run_as_root(host, "tee", f"{_ROOT}udp_timeout", text=str(_SECONDS))
        run_as_root(host, sys.executable, "-ISc", _FILL, str(self._most(host) * self.percent // 100))

    def heal(self, box: Sandbox, host: Host) -> None:
        nftables.unload_table(host, self.key)
        run_as_root(host, "tee", f"{_ROOT}udp_timeout", text=str(_USUAL_SECONDS))
        run_as_root(host, sys.executable, "-ISc", _EMPTY)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset({"tracked connections"})

    def _most(self, host: Host) -> int:
        reply = host.run(["cat", f"{_ROOT}max"])
        if reply.returncode != 0:
            raise SandboxError(sandbox.KERNEL, "this kernel has no connection tracking", "boot", option=_NO_TABLE)
        return int(reply.stdout)
