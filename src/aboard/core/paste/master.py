"""Where rank 0 listens, as a launcher's flags say it."""

import re

from aboard.core.words import MAX_PORT, host_trouble, visible
from aboard.diagnoses import InputError, Problem, paste
from aboard.lazy import dataclass

_ENDPOINT = re.compile(r"(\[[^\]]*\]|[^:]*)(?::(\d+))?|([0-9a-fA-F:]+)")
_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1|0\.0\.0\.0")


@dataclass(frozen=True, kw_only=True)
class Master:
    """None is for Aboard to choose, from what the check has seen."""

    address: str | None = None
    port: int | None = None
    notes: tuple[str, ...] = ()


def master(address: str | None, port: int | None, *, where: str) -> Master:
    """A loopback address names another machine on each node, and port 0 means any, so both are left to be chosen."""
    host = address.strip().removeprefix("[").removesuffix("]") if address else None
    if host and _LOOPBACK.fullmatch(host):
        host = None
    if host and (trouble := host_trouble(host)):
        fix = paste.MASTER.fix("host", option=where)
        raise InputError(paste.MASTER, [Problem(where=where, seen=trouble, fix=fix)])
    if port is not None and not 0 <= port <= MAX_PORT:
        seen = f"{port} is no port: 1 to {MAX_PORT:,} are"
        raise InputError(paste.MASTER, [Problem(where=where, seen=seen, fix=paste.MASTER.fix("port"))])
    return Master(address=host, port=port or None)


def endpoint(text: str, *, where: str) -> Master:
    """The HOST[:PORT] of torchrun's --rdzv-endpoint; an IPv6 address with a port stands in brackets."""
    match = _ENDPOINT.fullmatch(text)
    if not match:
        fix = paste.MASTER.fix("endpoint")
        raise InputError(paste.MASTER, [Problem(where=where, seen=f"'{visible(text)}' is no HOST:PORT", fix=fix)])
    return master(match[3] or match[1], int(match[2]) if match[2] else None, where=where)
