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

from aboard.core.cluster.head_machine import HeadMachine
from aboard.core.cluster.interpreter import HeadEnvironment, InterpreterSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

# A resolver that answers at all does so well within this; one that doesn't would hold us for half a minute.
RESOLVE_SECONDS = 1.0
MAX_PEERS = 16

_DISCARD_PORT = 9
# What pipx and `uv tool` leave in the environment of a tool.
_TOOL_MARKS = ("pipx_metadata.json", "uv-receipt.toml")
# Addresses that nobody has (RFC 5737, RFC 3849): the way to them is the default route.
_UNASSIGNED_ADDRESSES = ("198.51.100.1", "2001:db8::1")
# The kernel's own list of what it answers to: a 0.1 ms read, where `ip addr` is a program to start, and maybe to miss.
_LOCAL_V4 = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")
_V6 = re.compile(r"^([0-9a-f]{32}) ", re.MULTILINE)


def inspect_this_machine() -> HeadMachine:
    """This machine's names and addresses and who we are; what can't be found out is left out."""
    hostname = socket.gethostname()
    addresses = _list_addresses(hostname)
    names = {hostname, hostname.partition(".")[0], *_list_hosts_names(addresses)}
    names.update(*_run_within(RESOLVE_SECONDS, [lambda: _resolve_canonical_names(hostname)]))
    return HeadMachine(
        names=frozenset(name.lower() for name in names if name and not name.lower().startswith("localhost")),
        addresses=addresses,
        user=_find_user_name(),
    )


def find_environment(environ: "Mapping[str, str]") -> HeadEnvironment | None:
    """The activated environment, else the one that runs us.

    What only runs us is not offered if it can't be meant for training: a tool's own environment (pipx, `uv tool`) or a
    system's Python, without torch in it.
    """
    for name, origin in (
        ("VIRTUAL_ENV", InterpreterSource.VIRTUAL_ENV),
        ("CONDA_PREFIX", InterpreterSource.CONDA_PREFIX),
    ):
        python = Path(environ.get(name) or ".", "bin/python")
        if python.is_absolute() and os.access(python, os.X_OK):
            # Not os.path.samefile: a virtual environment's interpreter is a link to the one that it was made from.
            return HeadEnvironment(python=str(python), origin=origin, running=Path(sys.prefix) == python.parents[1])
    prefix = Path(sys.prefix)
    tool = any((prefix / mark).is_file() for mark in _TOOL_MARKS)
    environment = sys.prefix != sys.base_prefix or (prefix / "conda-meta").is_dir()
    if not sys.executable or ((tool or not environment) and find_spec("torch") is None):
        return None
    return HeadEnvironment(python=os.path.abspath(sys.executable), origin=InterpreterSource.ABOARD, running=True)  # noqa: PTH100 - links stay links


def find_source_addresses(peers: "Sequence[str]") -> tuple[str, ...]:
    """The addresses from which this machine would speak to its peers, as its routes say; nothing is sent."""
    ask = [lambda peer=peer: _find_source_address(peer) for peer in peers[:MAX_PEERS]]
    return tuple(address for address in _run_within(RESOLVE_SECONDS, ask) if address)


def _list_addresses(hostname: str) -> tuple[str, ...]:
    first = [source for source in map(_find_source_address, _UNASSIGNED_ADDRESSES) if source]
    own = [
        *_LOCAL_V4.findall(_read_system_file("/proc/net/fib_trie")),
        *map(_format_ipv6, _V6.findall(_read_system_file("/proc/net/if_inet6"))),
    ]
    return tuple(dict.fromkeys([*first, *(own or _resolve_addresses(hostname))]))


def _format_ipv6(digits: str) -> str:
    return str(IPv6Address(int(digits, 16)))


def _read_system_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux, or not for us to read
        return ""


def _resolve_addresses(hostname: str) -> list[str]:
    answers = _run_within(RESOLVE_SECONDS, [lambda: socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)])
    return [str(info[4][0]) for infos in answers for info in infos]


def _list_hosts_names(addresses: "Iterable[str]") -> "Iterator[str]":
    """The names that /etc/hosts has for this machine, its 127.0.1.1 among them."""
    own = set(addresses)
    for line in _read_system_file("/etc/hosts").splitlines():
        address, *names = re.split(r"\s+", line.partition("#")[0].strip())
        if address in own or address.startswith("127."):
            yield from names


def _resolve_canonical_names(hostname: str) -> set[str]:
    infos = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
    return {info[3] for info in infos if info[3]}


def _find_source_address(peer: str) -> str | None:
    """The local end of a connected UDP socket: the kernel picks it by its routes and sends nothing."""
    for family, kind, proto, _, address in socket.getaddrinfo(peer, _DISCARD_PORT, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind, proto) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:  # no such family here, or no route in it
            continue
    return None


def _run_within(seconds: float, asks: "Sequence[Callable[[], T]]") -> list[T]:
    """The answers that came in time; getaddrinfo takes no time-out, so threads that we may leave behind ask."""
    answers: queue.SimpleQueue[T | None] = queue.SimpleQueue()

    def answer(ask: "Callable[[], T]") -> None:
        try:
            answers.put(ask())
        except (OSError, UnicodeError):  # UnicodeError: a label that IDNA can't encode, such as 64 letters
            answers.put(None)

    for ask in asks:
        threading.Thread(target=answer, args=(ask,), daemon=True).start()
    results: list[T] = []
    deadline = time.monotonic() + seconds
    try:
        for _ in asks:
            result = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            if result is not None:
                results.append(result)
    except queue.Empty:
        pass
    return results


def _find_user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a passwd entry, as in many containers
        return str(os.getuid())
