"""The passive part of a snapshot: processes, connections, the node, addresses and disks, in turn.

Cheap and reliable sources come first, those that may hang come last. Each of the latter is reported before it is
queried, so that a snapshot which never completes still shows where it hangs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time

from aboard.agent.inspect import nccl_ras, node_state, process_activity
from aboard.agent.inspect.kernel_log import read_journal
from aboard.agent.inspect.tcp_sockets import SocketTables, list_open_files
from aboard.agent.network import interface_addresses
from aboard.agent.network.mtu_probe import probe_packet_sizes
from aboard.agent.process_tree import list_families, read_parents

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from aboard.agent import frames

    Report = Callable[[dict[str, Any]], None]

WATCH_SECONDS = 0.5
DIAL_SECONDS = 0.5
LEAST_DIAL_SECONDS = 0.1
JOURNAL_SECONDS = 0.4
# Long enough for names and disks that respond; the others are reported by then.
REST_SECONDS = 0.3
ECHO_SECONDS = 0.6
MOST_ECHOES = 16
MOST_WORKERS = 32
MOST_TARGETS = 64
MOST_PATHS = 16
# Local file systems, which respond at once.
_OWN_DISKS = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs"))
WORKER_FIELDS = ("pid", "name", "state", "states", "wchan", "call", "file", "cpu", "delay")
CONNECT_OUTCOMES = {
    0: "connected",
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "rejected",
    errno.ENETUNREACH: "no route",
    errno.EACCES: "rejected",
    errno.EPERM: "rejected",
    errno.EADDRNOTAVAIL: "no route",
}


def collect_snapshot(
    message: frames.Message, roots: Mapping[str, int], tops: Mapping[str, int], seconds: float, report: Report
) -> None:
    """`roots` are the ranks' own processes, `tops` those that the supervisor started."""
    began = time.monotonic()
    # Before the processes, of which there may be hundreds: only the node's counters show who died of memory.
    node = node_state.read_node_state()
    report(node)
    ras_query = None
    if roots:
        watched = 0.0 if message.get("brief") else min(WATCH_SECONDS, seconds / 2)
        ras_query = _collect_processes(roots, tops, watched, report, ras_too=bool(message.get("ras")))
    mounts = node_state.list_mounts()
    report({"mounts": mounts, "addresses": interface_addresses.list_addresses(), "hostname": os.uname().nodename})
    if node["gpus"] and "kernel" not in node:
        # Nothing else reports why a GPU failed.
        report({"kernel": read_journal(JOURNAL_SECONDS)})
    if ras_query is not None:
        report({"ras": ras_query.answer(seconds - REST_SECONDS - (time.monotonic() - began))})
    targets = [(str(host), int(port)) for host, port in list(message.get("targets") or ())[:MOST_TARGETS]]
    if targets:
        remaining = min(DIAL_SECONDS, seconds - (time.monotonic() - began))
        # A node under load is late with everything; do not call a peer silent that got too little time.
        report({"dials": _probe_targets(targets, max(LEAST_DIAL_SECONDS, remaining))})
    peers = [str(address) for address in message.get("echoes") or ()][:MOST_ECHOES]
    if peers:
        report({"echoes": probe_packet_sizes(peers, ECHO_SECONDS)})
    resolved: dict[str, Any] = {}
    names = [str(name) for name in message.get("names") or ()]
    for name in [os.uname().nodename, *names][:MOST_TARGETS] if names else ():
        report({"asked": "the address of %s" % name})
        resolved[name] = _resolve_name(name)
        report({"names": resolved, "asked": ""})
    paths = dict.fromkeys([str(path) for path in message.get("paths") or ()] + ["/dev/shm", "/tmp"])  # noqa: S108 - only their usage is read
    # An error says that a disk is full, but not which one; the last mount hides the earlier ones.
    paths.update(dict.fromkeys(place for place, kind, _source in reversed(mounts) if kind in _OWN_DISKS))
    disks = []
    for path in list(paths)[:MOST_PATHS]:
        report({"asked": "the disk of %s" % path})
        disks.append(node_state.read_disk_usage(path))
        report({"disks": disks, "asked": ""})


def _collect_processes(
    roots: Mapping[str, int], tops: Mapping[str, int], seconds: float, report: Report, *, ras_too: bool
) -> nccl_ras.RasQuery | None:
    tables = SocketTables()
    members = list_families(tops.values(), read_parents(zombies=True))
    every = {pid for family in members.values() for pid in family}
    # The connections first: half a second later they may have moved on, and a rank with them.
    sockets = {name: tables.of([root]) for name, root in roots.items()}
    ras_query = nccl_ras.query_ras(roots, sockets) if ras_too else None
    before = node_state.NodeCounters()
    samples = process_activity.sample_processes(every | set(roots.values()), seconds)
    after = node_state.NodeCounters()
    children = {}
    for name, root in roots.items():
        child = samples.get(root, {"pid": root})
        workers = [samples[pid] for pid in members.get(tops[name], ()) if pid != root and pid in samples]
        child["workers"] = [{key: worker[key] for key in WORKER_FIELDS} for worker in workers[:MOST_WORKERS]]
        child["sockets"] = sockets[name]
        with contextlib.suppress(OSError):
            child["rdma"] = any("/infiniband/uverbs" in target for target in list_open_files(root))
        children[name] = child
    report(
        {"children": children, **node_state.compute_rates(before, after, every | set(roots.values()) | {os.getppid()})}
    )
    return ras_query


def _probe_targets(targets: list[tuple[str, int]], seconds: float) -> list[list[Any]]:
    """Each as [host, port, outcome]: connects and closes without sending anything."""
    outcomes: dict[tuple[str, int], str] = {}
    probes: dict[int, tuple[tuple[str, int], socket.socket]] = {}
    poll = select.poll()
    for host, port in targets:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        probe = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            code = probe.connect_ex((host, port))
        except (OSError, UnicodeError):
            # A name: resolved elsewhere, where it may take time.
            outcomes[host, port] = "unresolved"
            probe.close()
            continue
        if code in (errno.EINPROGRESS, errno.EAGAIN):
            probes[probe.fileno()] = ((host, port), probe)
            poll.register(probe.fileno(), select.POLLOUT)
        else:
            outcomes[host, port] = CONNECT_OUTCOMES.get(code, os.strerror(code))
            probe.close()
    end = time.monotonic() + seconds
    while probes and time.monotonic() < end:
        for fd, _events in poll.poll(max(0.0, end - time.monotonic()) * 1000):
            target, probe = probes.pop(fd)
            poll.unregister(fd)
            code = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            outcomes[target] = CONNECT_OUTCOMES.get(code, os.strerror(code))
            probe.close()
    for target, probe in probes.values():
        outcomes[target] = "dropped"
        probe.close()
    return [[host, port, outcomes[host, port]] for host, port in targets]


def _resolve_name(name: str) -> list[str] | str:
    with contextlib.suppress(UnicodeError):
        try:
            return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name.encode(), 0, 0, socket.SOCK_STREAM)})
        except OSError as error:
            return str(error.strerror or error)
    return "no host name"
