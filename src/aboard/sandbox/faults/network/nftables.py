"""Loads and unloads one nftables table per fault, so that faults do not touch each other's rules."""

from collections.abc import Sequence
from typing import Literal

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.faults.root_commands import require_program, run_as_root
from aboard.sandbox.host import Host

Direction = Literal["in", "out", "both"]
NetworkName = Literal["management", "fabric", "both"]

#: Never the loopback: a host's traffic to itself passes no switch and no firewall.
INTERFACES = {"management": "eth0", "fabric": "eth1", "both": "eth*"}

_PARTS = "CONFIG_NF_TABLES_INET, CONFIG_NFT_REJECT_INET and CONFIG_NFT_NUMGEN"


def require_nftables() -> None:
    """Raises if nft is not installed."""
    require_program("nft", "nftables")


def load_table(host: Host, key: str, chains: str) -> None:
    """Loads a fault's table, replacing an earlier one."""
    try:
        run_as_root(
            host, "nft", "-f", "-", text=f"{_format_removal(key)}table inet {_format_table_name(key)} {{\n{chains}}}\n"
        )
    except SandboxError as error:
        if "No such file or directory" not in error.seen:
            raise
        raise SandboxError(
            sandbox.KERNEL, f"this kernel lacks a part of nftables: {error.seen}", "boot", option=_PARTS
        ) from error


def unload_table(host: Host, key: str) -> None:
    """Removes a fault's table, if it exists."""
    run_as_root(host, "nft", "-f", "-", text=_format_removal(key))


def format_filter_chains(way: Direction, rule: str, *, network: NetworkName = "both", peers: Sequence[str] = ()) -> str:
    """Chains with a rule for incoming packets, outgoing ones or both, on these NICs, for these peers."""
    sides = {"in": ("input", "iifname", "saddr"), "out": ("output", "oifname", "daddr")}
    wanted = sides.values() if way == "both" else [sides[way]]
    return "".join(
        _format_chain(hook, _format_match(interface, INTERFACES[network], end, peers) + rule)
        for hook, interface, end in wanted
    )


def _format_chain(hook: str, rule: str) -> str:
    return f"  chain {hook} {{\n    type filter hook {hook} priority 0;\n    {rule}\n  }}\n"


def _format_match(interface: str, pattern: str, end: str, peers: Sequence[str]) -> str:
    addresses = f"ip {end} {{ {', '.join(peers)} }} " if peers else ""
    return f'{interface} "{pattern}" {addresses}'


def _format_removal(key: str) -> str:
    # Added first, because deleting a missing table is an error.
    return f"add table inet {_format_table_name(key)}\ndelete table inet {_format_table_name(key)}\n"


def _format_table_name(key: str) -> str:
    return "aboard_" + key.replace("-", "_")
