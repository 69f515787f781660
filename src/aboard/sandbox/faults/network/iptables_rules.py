"""Rules of a fault in the chains where an administrator's stand: what lets packets in there lets them in here, too.

An nftables table of its own would be no such firewall: what one table accepts, another still drops (nft(8)), so the
`iptables -I INPUT … -j ACCEPT` that mends a real one would do nothing.
"""

from collections.abc import Sequence

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.faults.root_commands import require_program, run_as_root, run_script
from aboard.sandbox.host import Host

_PARTS = "CONFIG_NETFILTER_XT_MATCH_MULTIPORT, CONFIG_NETFILTER_XT_MATCH_COMMENT and CONFIG_IP_NF_TARGET_REJECT"
# Rules carry the fault's key as their comment. A table that is empty again was ours: iptables never removes one.
_UNLOAD = """
{ echo '*filter'; iptables -w -S | grep -e "--comment $1 " | sed 's/^-A/-D/'; echo COMMIT; } | iptables-restore -w -n
if iptables -w -S | grep -q -e '^-A' -e '^-P [A-Z]* DROP'; then exit 0; fi
nft delete table ip filter 2>/dev/null || true
"""


def require_iptables() -> None:
    """The programs that all of this needs."""
    require_program("iptables", "iptables")
    require_program("nft", "nftables")


def load_rules(host: Host, key: str, rules: Sequence[Sequence[str]]) -> None:
    """Put a fault's rules in force, in place of those that are there already; all of them or none."""
    unload_rules(host, key)
    lines = "".join(f"-A {' '.join([rule[0], '-m comment --comment', key, *rule[1:]])}\n" for rule in rules)
    try:
        run_as_root(host, "iptables-restore", "-w", "-n", text=f"*filter\n{lines}COMMIT\n")
    except SandboxError as error:
        raise SandboxError(
            sandbox.KERNEL, f"this kernel lacks a part of iptables: {error.seen}", "boot", option=_PARTS
        ) from error


def unload_rules(host: Host, key: str) -> None:
    """Take a fault's rules away; that there are none is fine."""
    run_script(host, _UNLOAD, key)
