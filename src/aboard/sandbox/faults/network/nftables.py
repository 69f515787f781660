"""Loads and unloads one nftables table per fault, so that faults do not touch each other's rules."""

from typing import Literal

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.faults.root_commands import run_as_root
from aboard.sandbox.host import Host

Direction = Literal["in", "out", "both"]
NetworkName = Literal["management", "fabric", "both"]

#: Never the loopback: a host's traffic to itself passes no switch and no firewall.
INTERFACES = {"management": "eth0", "fabric": "eth1", "both": "eth*"}

_PARTS = "CONFIG_NF_TABLES_INET, CONFIG_NFT_REJECT_INET and CONFIG_NFT_NUMGEN"


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


def format_filter_chains(direction: Direction, rule: str, *, network: NetworkName) -> str:
    """Chains with a rule for incoming packets, outgoing ones or both, on these NICs."""
    sides = {"in": ("input", "iifname"), "out": ("output", "oifname")}
    rule = f'"{INTERFACES[network]}" {rule}'
    return "".join(
        f"  chain {hook} {{\n    type filter hook {hook} priority 0;\n    {interface} {rule}\n  }}\n"
        for hook, interface in (sides.values() if direction == "both" else [sides[direction]])
    )


def _format_removal(key: str) -> str:
    # Added first, because deleting a missing table is an error.
    return f"add table inet {_format_table_name(key)}\ndelete table inet {_format_table_name(key)}\n"


def _format_table_name(key: str) -> str:
    return "aboard_" + key.replace("-", "_")
