"""NCCL's lines: their parts, and those that every reader needs, whatever the version calls them.

Lines are `host:pid:tid [dev] NCCL INFO …`; a WARN is preceded by its source location, and from 2.26 on by the time.
"""

import re

from aboard.lazy_dataclass import dataclass

_LINE = re.compile(
    r"(?:\[[^\]]{0,200}\] )?(?<![\w.])(?P<host>\w[\w.-]{0,254}):(?P<pid>\d{1,18}):(?P<tid>\d{1,18}) "
    r"(?:\[(?P<dev>-?\d{1,9})\] )?(?:(?P<place>\S{1,300}:\d{1,9}) )?(?:\(\S{1,300}\) )?"
    r"NCCL (?P<level>INFO|WARN|ERROR) (?P<text>.*)"
)
# Without a prefix up to 2.22, with one later.
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
NETWORK = re.compile(r"Using (?:internal )?[Nn]etwork (.+)")
# `[0]mlx5_0:1/IB`, `={[0] mlx5_0:1/IB, …}` in 2.20 to 2.23, `:rail:plane` before the slash in 2.30.
ADAPTER = re.compile(r"([A-Za-z][\w.-]{0,63}):\d{1,9}(?::[\w-]{1,64}){0,8}/(?:IB|RoCE)")
# `Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA(PCI)/Shared`, `via P2P/CUMEM`, `via SHM/direct`.
CHANNEL = re.compile(
    r"^Channel .{1,100}? via (NET/[A-Za-z][A-Za-z ]{0,40}|P2P|SHM|direct shared memory)(?:\S{0,40}(/GDRDMA))?"
)


@dataclass(frozen=True, kw_only=True)
class NcclLine:
    """A line that NCCL itself wrote."""

    host: str
    pid: int
    level: str
    text: str


def parse_nccl_line(text: str) -> NcclLine | None:
    """The parts of a line that NCCL wrote; None for any other."""
    found = _LINE.search(text)
    if found is None:
        return None
    return NcclLine(host=found["host"], pid=int(found["pid"]), level=found["level"], text=found["text"])


def parse_version(text: str) -> str:
    found = _VERSION.search(text)
    return found[1] if found else ""
