"""One nftables table per fault: it comes and goes whole, and no other fault's rules are touched."""

from collections.abc import Sequence
from typing import Literal

from aboard.diagnoses import SandboxError, sandbox
from aboard.sandbox.faults.hands import do, need
from aboard.sandbox.host import Host

Way = Literal["in", "out", "both"]
Network = Literal["management", "fabric", "both"]

#: Never the loopback: a host's talk to itself passes no switch and no firewall box.
CARDS = {"management": "eth0", "fabric": "eth1", "both": "eth*"}

_PARTS = "CONFIG_NF_TABLES_INET, CONFIG_NFT_REJECT_INET and CONFIG_NFT_NUMGEN"


def require() -> None:
    """The program that all of this needs."""
    need("nft", "nftables")


def load(host: Host, key: str, chains: str) -> None:
    """Put a fault's table in force, in place of one that is there already."""
    try:
        do(host, "nft", "-f", "-", text=f"{_gone(key)}table inet {_table(key)} {{\n{chains}}}\n")
    except SandboxError as error:
        if "No such file or directory" not in error.seen:
            raise
        raise SandboxError(
            sandbox.KERNEL, f"this kernel lacks a part of nftables: {error.seen}", "boot", option=_PARTS
        ) from error


def unload(host: Host, key: str) -> None:
    """Take a fault's table away; that it isn't there is fine."""
    do(host, "nft", "-f", "-", text=_gone(key))


def filters(way: Way, rule: str, *, network: Network = "both", peers: Sequence[str] = ()) -> str:
    """A rule for the packets that arrive, that leave, or both, at these cards and of these peers."""
    sides = {"in": ("input", "iifname", "saddr"), "out": ("output", "oifname", "daddr")}
    wanted = sides.values() if way == "both" else [sides[way]]
    return "".join(_chain(hook, _match(card, CARDS[network], end, peers) + rule) for hook, card, end in wanted)


def _chain(hook: str, rule: str) -> str:
    return f"  chain {hook} {{\n    type filter hook {hook} priority 0;\n    {rule}\n  }}\n"


def _match(card: str, pattern: str, end: str, peers: Sequence[str]) -> str:
    addresses = f"ip {end} {{ {', '.join(peers)} }} " if peers else ""
    return f'{card} "{pattern}" {addresses}'


def _gone(key: str) -> str:
    # Added first, because deleting a table that isn't there is an error.
    return f"add table inet {_table(key)}\ndelete table inet {_table(key)}\n"


def _table(key: str) -> str:
    return "aboard_" + key.replace("-", "_")
