"""Looking at the machine that `aboard` runs on: its names, its addresses, its active Python environment."""

import getpass
import os
import queue
import re
import socket
import sys
import threading
import time
from importlib.util import find_spec
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from aboard.core.head import Here
from aboard.core.interpreter import HeadEnvironment, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

# A resolver that answers at all does so well within this; one that doesn't would hold us for half a minute.
RESOLVE_SECONDS = 1.0
ASKED_PEERS = 16

_DISCARD_PORT = 9
# What pipx and `uv tool` leave in the environment of a tool.
_TOOL_MARKS = ("pipx_metadata.json", "uv-receipt.toml")
# Addresses that nobody has (RFC 5737, RFC 3849): the way to them is the default route.
_ELSEWHERE = ("198.51.100.1", "2001:db8::1")
# The kernel's own list of what it answers to: a 0.1 ms read, where `ip addr` is a program to start, and maybe to miss.
_LOCAL_V4 = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")
_V6 = re.compile(r"^([0-9a-f]{32}) ", re.MULTILINE)


def look_around() -> Here:
    """This machine's names and addresses and who we are; what can't be found out is left out."""
    hostname = socket.gethostname()
    addresses = _addresses(hostname)
    names = {hostname, hostname.partition(".")[0], *_hosts_names(addresses)}
    names.update(*_within(RESOLVE_SECONDS, [lambda: _canonical(hostname)]))
    return Here(
        names=frozenset(name.lower() for name in names if name and not name.lower().startswith("localhost")),
        addresses=addresses,
        user=_user(),
    )


def find_environment(environ: "Mapping[str, str]") -> HeadEnvironment | None:
    """The activated environment, else the one that runs us.

    What only runs us is not offered if it can't be meant for training: a tool's own environment (pipx, `uv tool`) or a
    system's Python, without torch in it.
    """
    for name, origin in (("VIRTUAL_ENV", Origin.VIRTUAL_ENV), ("CONDA_PREFIX", Origin.CONDA_PREFIX)):
        python = Path(environ.get(name) or ".", "bin/python")
        if python.is_absolute() and os.access(python, os.X_OK):
            # Not os.path.samefile: a virtual environment's interpreter is a link to the one that it was made from.
            return HeadEnvironment(python=str(python), origin=origin, running=Path(sys.prefix) == python.parents[1])
    prefix = Path(sys.prefix)
    tool = any((prefix / mark).is_file() for mark in _TOOL_MARKS)
    environment = sys.prefix != sys.base_prefix or (prefix / "conda-meta").is_dir()
    if not sys.executable or ((tool or not environment) and find_spec("torch") is None):
        return None
    return HeadEnvironment(python=os.path.abspath(sys.executable), origin=Origin.ABOARD, running=True)  # noqa: PTH100 - links stay links


def sources_toward(peers: "Sequence[str]") -> tuple[str, ...]:
    """The addresses from which this machine would speak to its peers, as its routes say; nothing is sent."""
    ask = [lambda peer=peer: _source(peer) for peer in peers[:ASKED_PEERS]]
    return tuple(address for address in _within(RESOLVE_SECONDS, ask) if address)


def _addresses(hostname: str) -> tuple[str, ...]:
    first = [source for source in map(_source, _ELSEWHERE) if source]
    own = [*_LOCAL_V4.findall(_read("/proc/net/fib_trie")), *map(_v6, _V6.findall(_read("/proc/net/if_inet6")))]
    return tuple(dict.fromkeys([*first, *(own or _resolved(hostname))]))


def _v6(digits: str) -> str:
    return str(IPv6Address(int(digits, 16)))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux, or not for us to read
        return ""


def _resolved(hostname: str) -> list[str]:
    found = _within(RESOLVE_SECONDS, [lambda: socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)])
    return [str(info[4][0]) for infos in found for info in infos]


def _hosts_names(addresses: "Iterable[str]") -> "Iterator[str]":
    """The names that /etc/hosts has for this machine, its 127.0.1.1 among them."""
    own = set(addresses)
    for line in _read("/etc/hosts").splitlines():
        address, *names = re.split(r"\s+", line.partition("#")[0].strip())
        if address in own or address.startswith("127."):
            yield from names


def _canonical(hostname: str) -> set[str]:
    infos = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
    return {info[3] for info in infos if info[3]}


def _source(peer: str) -> str | None:
    """The local end of a connected UDP socket: the kernel picks it by its routes and sends nothing."""
    for family, kind, proto, _, address in socket.getaddrinfo(peer, _DISCARD_PORT, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind, proto) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:  # no such family here, or no route in it
            continue
    return None


def _within(seconds: float, asks: "Sequence[Callable[[], T]]") -> list[T]:
    """The answers that came in time; getaddrinfo takes no time-out, so threads that we may leave behind ask."""
    answers: queue.SimpleQueue[T | None] = queue.SimpleQueue()

    def answer(ask: "Callable[[], T]") -> None:
        try:
            answers.put(ask())
        except (OSError, UnicodeError):  # UnicodeError: a label that IDNA can't encode, such as 64 letters
            answers.put(None)

    for ask in asks:
        threading.Thread(target=answer, args=(ask,), daemon=True).start()
    found: list[T] = []
    deadline = time.monotonic() + seconds
    try:
        for _ in asks:
            got = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            if got is not None:
                found.append(got)
    except queue.Empty:
        pass
    return found


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a passwd entry, as in many containers
        return str(os.getuid())
