"""Inspects the machine that `aboard` runs on: its names, its addresses, its active Python environment."""

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

# A working resolver responds well within this; a broken one would block for half a minute.
RESOLVE_SECONDS = 1.0
MAX_PEERS = 16

_DISCARD_PORT = 9
# Files that pipx and `uv tool` put into a tool's environment.
_TOOL_MARKS = ("pipx_metadata.json", "uv-receipt.toml")
# Addresses reserved for documentation (RFC 5737, RFC 3849): they are reached over the default route.
_UNASSIGNED_ADDRESSES = ("198.51.100.1", "2001:db8::1")
# The kernel's list of local addresses: reading it takes 0.1 ms, while `ip addr` starts a program that may be missing.
_LOCAL_V4 = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")
_V6 = re.compile(r"^([0-9a-f]{32}) ", re.MULTILINE)


def inspect_this_machine() -> HeadMachine:
    """This machine's names, addresses and user; values that can't be determined are left out."""
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
    """The activated environment, or else the one that runs Aboard.

    The latter is not used if it can't be meant for training: a tool's environment (pipx, `uv tool`) or the system's
    Python, without torch.
    """
    for name, origin in (
        ("VIRTUAL_ENV", InterpreterSource.VIRTUAL_ENV),
        ("CONDA_PREFIX", InterpreterSource.CONDA_PREFIX),
    ):
        python = Path(environ.get(name) or ".", "bin/python")
        if python.is_absolute() and os.access(python, os.X_OK):
            # Not os.path.samefile: a virtual environment's interpreter is a link to its base interpreter.
            return HeadEnvironment(python=str(python), origin=origin, running=Path(sys.prefix) == python.parents[1])
    prefix = Path(sys.prefix)
    tool = any((prefix / mark).is_file() for mark in _TOOL_MARKS)
    environment = sys.prefix != sys.base_prefix or (prefix / "conda-meta").is_dir()
    if not sys.executable or ((tool or not environment) and find_spec("torch") is None):
        return None
    return HeadEnvironment(python=os.path.abspath(sys.executable), origin=InterpreterSource.ABOARD, running=True)  # noqa: PTH100 - links stay links


def find_source_addresses(peers: "Sequence[str]") -> tuple[str, ...]:
    """The source addresses for connections to these peers, by the routing table; sends nothing."""
    lookups = [lambda peer=peer: _find_source_address(peer) for peer in peers[:MAX_PEERS]]
    return tuple(address for address in _run_within(RESOLVE_SECONDS, lookups) if address)


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
    except OSError:  # not Linux, or no permission
        return ""


def _resolve_addresses(hostname: str) -> list[str]:
    lookups = _run_within(RESOLVE_SECONDS, [lambda: socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)])
    return [str(info[4][0]) for infos in lookups for info in infos]


def _list_hosts_names(addresses: "Iterable[str]") -> "Iterator[str]":
    """This machine's names in /etc/hosts, including those of 127.0.1.1."""
    own = set(addresses)
    for line in _read_system_file("/etc/hosts").splitlines():
        address, *names = re.split(r"\s+", line.partition("#")[0].strip())
        if address in own or address.startswith("127."):
            yield from names


def _resolve_canonical_names(hostname: str) -> set[str]:
    infos = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
    return {info[3] for info in infos if info[3]}


def _find_source_address(peer: str) -> str | None:
    """The local address of a connected UDP socket, which the kernel picks by its routes without sending."""
    for family, kind, proto, _, address in socket.getaddrinfo(peer, _DISCARD_PORT, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind, proto) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:  # no such family here, or no route in it
            continue
    return None


def _run_within(seconds: float, functions: "Sequence[Callable[[], T]]") -> list[T]:
    """The results that arrive in time; getaddrinfo has no timeout, so it runs in threads that may be left behind."""
    finished: queue.SimpleQueue[T | None] = queue.SimpleQueue()

    def run(function: "Callable[[], T]") -> None:
        try:
            finished.put(function())
        except (OSError, UnicodeError):  # UnicodeError: a label that IDNA can't encode, such as 64 letters
            finished.put(None)

    for function in functions:
        threading.Thread(target=run, args=(function,), daemon=True).start()
    results: list[T] = []
    deadline = time.monotonic() + seconds
    try:
        for _ in functions:
            result = finished.get(timeout=max(0.0, deadline - time.monotonic()))
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


def get_cache_folder(env: "Mapping[str, str]") -> Path:
    """The folder of prepared data in the user's cache; it may be deleted at any time and is rebuilt."""
    base = env.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "aboard" / "data"
