"""The master address and port in a launcher's flags."""

import re

from aboard.core.text.input_text import MAX_PORT, find_host_error
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass

_ENDPOINT = re.compile(r"(\[[^\]]*\]|[^:]*)(?::(\d+))?|([0-9a-fA-F:]+)")
_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1|0\.0\.0\.0")


@dataclass(frozen=True, kw_only=True)
class RequestedMaster:
    """None means that Aboard chooses, based on preflight."""

    address: str | None = None
    port: int | None = None
    notes: tuple[str, ...] = ()


def parse_master(address: str | None, given_port: object, *, where: str) -> RequestedMaster:
    """Leaves an address to Aboard that differs on each node, and port 0, any."""
    host = address.strip().removeprefix("[").removesuffix("]") if address else None
    port = given_port if isinstance(given_port, int) else None
    if host and _LOOPBACK.fullmatch(host):
        host = None
    if host and (trouble := find_host_error(host)):
        raise InputError.of(pasted_commands.MASTER, where, trouble, "host", option=where)
    if port is not None and not 0 <= port <= MAX_PORT:
        seen = f"{port} is not a port (1 to {MAX_PORT:,})"
        raise InputError.of(pasted_commands.MASTER, where, seen, "port")
    return RequestedMaster(address=host, port=port or None)


def parse_endpoint(text: str, *, where: str) -> RequestedMaster:
    """Parses HOST[:PORT] of torchrun's --rdzv-endpoint; an IPv6 address with a port needs brackets."""
    match = _ENDPOINT.fullmatch(text)
    if not match:
        raise InputError.of(pasted_commands.MASTER, where, f"'{escape_text(text)}' is not HOST:PORT", "endpoint")
    return parse_master(match[3] or match[1], int(match[2]) if match[2] else None, where=where)
