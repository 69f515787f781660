"""Inspects the machine that `aboard` runs on: its names, its addresses, its active Python environment."""

import getpass
import json
import os
import queue
import re
import socket
import sys
import threading
import time
from hashlib import sha256
from importlib.util import find_spec
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from aboard.agent.private_folders import OTHERS_WRITE, close_to_others, make_private_folder
from aboard.core.cluster.head_machine import HeadMachine
from aboard.core.cluster.interpreter import HeadEnvironment, InterpreterSource
from aboard.core.decoding import parse_json
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import run_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

# A working resolver responds well within this; a broken one would block for half a minute.
RESOLVE_SECONDS = 1.0
MAX_PEERS = 16

_DISCARD_PORT = 9
# Environments that nodes have at a path of their own, and the most that is read of it.
_PLACES = "environments.json"
_PLACES_BYTES = 1024 * 1024
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
            return HeadEnvironment(
                python=str(python),
                origin=origin,
                running=Path(sys.prefix) == python.parents[1],
                places=_list_places(python, environ),
            )
    prefix = Path(sys.prefix)
    tool = any((prefix / mark).is_file() for mark in _TOOL_MARKS)
    environment = sys.prefix != sys.base_prefix or (prefix / "conda-meta").is_dir()
    if not sys.executable or ((tool or not environment) and find_spec("torch") is None):
        return None
    own = Path(os.path.abspath(sys.executable))  # noqa: PTH100 - links stay links
    places = _list_places(own, environ) if environment else ()
    return HeadEnvironment(python=str(own), origin=InterpreterSource.ABOARD, running=True, places=places)


def record_environment_place(prefix: Path, place: str, environ: "Mapping[str, str]") -> None:
    """Remembers where `aboard sync --env` put an environment on the nodes; its own path needs no record."""
    file = get_state_folder(environ) / _PLACES
    known = _read_places(file)
    places = {**known, str(prefix): place}
    if place in (str(prefix), abbreviate_home(prefix)):
        del places[str(prefix)]
    if places == known:
        return
    from aboard.durable_files import write_atomically  # noqa: PLC0415 - only after such a sync

    make_private_folder(file.parent)
    write_atomically(file, json.dumps(places), sync=False)


def find_environment_place(prefix: Path, environ: "Mapping[str, str]") -> str:
    """Where the nodes have the environment: where it was put, else below their home if it is below this one."""
    return _read_places(get_state_folder(environ) / _PLACES).get(str(prefix)) or abbreviate_home(prefix)


def build_fallback_place(prefix: Path) -> str:
    """A place in the home on the nodes, which no other environment has."""
    return f"~/.local/share/aboard/environments/{prefix.name}-{sha256(os.fsencode(prefix)).hexdigest()[:8]}"


def find_node_python(environ: "Mapping[str, str]") -> str:
    """The Python that runs Aboard, as Slurm's nodes have it: homes have the same path there."""
    place = _read_places(get_state_folder(environ) / _PLACES).get(sys.prefix)
    return sys.executable if place is None else str(Path(place).expanduser() / "bin" / Path(sys.executable).name)


def _list_places(python: Path, environ: "Mapping[str, str]") -> tuple[str, ...]:
    prefix = python.parents[1]
    place = find_environment_place(prefix, environ)
    return () if place == str(prefix) else (f"{place}/bin/{python.name}",)


def _read_places(file: Path) -> dict[str, str]:
    try:
        with file.open("rb") as opened:
            places = parse_json(opened.read(_PLACES_BYTES))
    except (OSError, ValueError):
        return {}
    known = places if isinstance(places, dict) else {}
    return {
        prefix: place for prefix, place in known.items() if isinstance(place, str) and place.startswith(("/", "~/"))
    }


def abbreviate_home(path: Path) -> str:
    """A path below the user's home as `~/…`, since another node may have its homes elsewhere."""
    path = path.absolute()
    for home in (Path.home(), Path.home().resolve()):
        if path.is_relative_to(home) and path != home:
            return f"~/{path.relative_to(home)}"
    return str(path)


def locate_on_nodes(path: Path) -> str:
    """Where the nodes have a file of this machine: its real path, since they may lack the links to it.

    A link in `/`, such as /scratch, stays: each machine has its own.
    """
    path, real = path.absolute(), path.resolve()
    top = Path(*path.parts[:2])
    if top.is_symlink() and real.is_relative_to(top.resolve()):
        real = top / real.relative_to(top.resolve())
    return abbreviate_home(real)


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


def require_own_folders(env: "Mapping[str, str]") -> None:
    """Raises if another user has made the folder of records or caches, or could write to it."""
    by = env.get("SUDO_UID", "")
    owners = {os.geteuid(), 0, *({int(by)} if os.geteuid() == 0 and by.isdecimal() else ())}
    for folder in (get_state_folder(env), get_cache_folder(env).parent):
        try:
            close_to_others(folder)
            link, status = folder.lstat(), folder.stat()
        except OSError:
            # Mostly: there is none yet. Whoever needs it makes it.
            continue
        if {link.st_uid, status.st_uid} <= owners and not status.st_mode & OTHERS_WRITE:
            continue
        where = escape_text(str(folder), 300)
        seen = f"{where} belongs to uid {link.st_uid}" if link.st_uid not in owners else f"others can write to {where}"
        raise AboardError(run_records.STATE_FOREIGN, seen, folder=folder)


def get_cache_folder(env: "Mapping[str, str]") -> Path:
    """The folder of prepared data in the user's cache; it may be deleted at any time and is rebuilt."""
    base = env.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "aboard" / "data"


def get_state_folder(env: "Mapping[str, str]") -> Path:
    """What must not be lost: the runs, and what the user allowed."""
    state = env.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path(env.get("HOME") or Path.home()) / ".local/state") / "aboard"
