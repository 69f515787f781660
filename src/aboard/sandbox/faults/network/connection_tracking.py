"""Fault: a connection tracking table that is nearly full."""

import sys
from typing import Annotated, ClassVar

from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.node_scripts.script_source import read_script
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.network import nftables
from aboard.sandbox.faults.root_commands import require_program, run_as_root
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox

_ROOT = "/proc/sys/net/netfilter/nf_conntrack_"
_USUAL_SECONDS = 30
_SECONDS = 3600
# Approximate kernel memory of an entry, in bytes.
_ENTRY = 300
_MOST = 600_000
_NO_TABLE = "CONFIG_NF_CONNTRACK, CONFIG_NF_CT_NETLINK and CONFIG_NFT_CT"


@dataclass(frozen=True, kw_only=True)
class ConntrackFull(Fault):
    """The connection tracking table is nearly full, as on a busy firewall: new connections may be dropped."""

    name: ClassVar[str] = "conntrack-full"
    resources: ClassVar[frozenset[str]] = frozenset({"tracked connections"})
    percent: Annotated[int, "How full the table is, in percent."] = 95

    def check(self, box: Sandbox, host: Host) -> None:
        require_program("nft", "nftables")
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
        _run_script(host, "fill", str(self._most(host) * self.percent // 100))

    def heal(self, box: Sandbox, host: Host) -> None:
        nftables.unload_table(host, self.key)
        run_as_root(host, "tee", f"{_ROOT}udp_timeout", text=str(_USUAL_SECONDS))
        _run_script(host, "empty")

    def _most(self, host: Host) -> int:
        reply = host.run(["cat", f"{_ROOT}max"])
        if reply.returncode != 0:
            raise SandboxError(sandbox.KERNEL, "this kernel has no connection tracking", "boot", option=_NO_TABLE)
        return int(reply.stdout)


def _run_script(host: Host, *words: str) -> None:
    run_as_root(host, sys.executable, "-ISc", read_script("tracked_connections"), *words)
