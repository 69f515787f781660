"""Resource usage, once a second: memory and CPU time of each child's process tree, and the node's load."""

from __future__ import annotations

import os
import time

from aboard.agent import procfs
from aboard.agent.process_tree import list_families, read_parents

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Scanning a node's processes costs 10 µs each; at this interval it takes a thousandth of a core.
SCAN_SECONDS = 5.0
SCAN_SHARE = 0.001
# While ranks start, what they start is looked for more often.
SOON_SECONDS = 0.9
SOON_SHARE = 0.005
RDMA = "/sys/class/infiniband"


class ResourceSampler:
    """Reads known processes each second, and scans for new ones now and then."""

    def __init__(self) -> None:
        self._members: dict[str, set[int]] = {}
        self._ticks: dict[int, tuple[bytes, int]] = {}
        self._read_at = 0.0
        self._scan_at = self._soon_at = 0.0
        # OOM kills before the first rank ran; None where the kernel does not count them.
        self.oom_before: int | None = None
        self.throttles_before: tuple[int, int] | None = None
        self._throttles: tuple[int, int] | None = None

    def node(self) -> dict[str, float]:
        """Load, memory, bytes on the network, and the share of time in which our cgroup was throttled.

        Values that can't be read are left out.
        """
        from aboard.agent.inspect.node_state import compute_throttled_share, read_throttle_counts  # noqa: PLC0415 - the reason is below

        figures = {}
        throttled_share = compute_throttled_share(self._throttles)
        if throttled_share is not None or self._throttles is None:
            self._throttles = read_throttle_counts()
        if throttled_share is not None:
            figures["throttled"] = throttled_share
        loads = procfs.read_kernel_file("/proc/loadavg").split()
        if loads:
            figures["load"] = float(loads[0])
        sizes = dict(
            line.split(b":", 1) for line in procfs.read_kernel_file("/proc/meminfo").split(b"\n") if b":" in line
        )
        if b"MemAvailable" in sizes and b"MemTotal" in sizes:
            free, total = (int(sizes[name].split()[0]) for name in (b"MemAvailable", b"MemTotal"))
            if total:
                figures["memory"], figures["memory_total"] = round(1 - free / total, 4), total * 1024
        figures.update(_count_network_bytes())
        return figures

    def children(self, roots: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        """By child, from its first process down: `rss` in bytes, shared pages counted in each, and `cpu` in cores.

        `stopped` means that it was stopped by a signal; a stop by a debugger is another state, and isn't reported.
        """
        now = time.monotonic()
        if not self._read_at:
            # Late, so that it does not delay a start.
            from aboard.agent.inspect.node_state import count_oom_kills, read_throttle_counts  # noqa: PLC0415 - the reason is above

            self.oom_before, self.throttles_before = count_oom_kills(), read_throttle_counts()
        self.find_members(roots, now)
        elapsed, self._read_at = now - self._read_at, now
        before, self._ticks = self._ticks, {}
        figures: dict[str, dict[str, Any]] = {}
        for name in roots:
            rss, ticks, has_baseline = 0, 0, False
            for pid in self._members[name]:
                fields = procfs.read_stat(pid)
                if len(fields) > procfs.PAGES:
                    rss += int(fields[procfs.PAGES]) * procfs.PAGE
                    used = int(fields[procfs.USER]) + int(fields[procfs.SYSTEM])
                    self._ticks[pid] = (fields[procfs.START_TIME], used)
                    # The pid may be reused by now.
                    if pid in before and before[pid][0] == fields[procfs.START_TIME]:
                        ticks += used - before[pid][1]
                        has_baseline = True
            if rss:
                figures[name] = {"rss": rss}
                if procfs.read_stat(roots[name])[:1] == [b"T"]:
                    figures[name]["stopped"] = 1
                if has_baseline and elapsed > 0:
                    figures[name]["cpu"] = round(ticks / procfs.TICKS / elapsed, 3)
        return figures

    def find_members(self, roots: Mapping[str, int], now: float, *, soon: bool = False) -> dict[str, set[int]] | None:
        """Each child's processes if it was time to scan for them, earlier if `soon`; None otherwise."""
        due = now >= (self._soon_at if soon else self._scan_at)
        if not due and all(root in self._members.get(name, ()) for name, root in roots.items()):
            return None
        self._scan(roots, now)
        return self._members

    def _scan(self, roots: Mapping[str, int], now: float) -> None:
        began = time.process_time()
        families = list_families(roots.values(), read_parents(zombies=True))
        self._members = {name: set(families[root]) for name, root in roots.items()}
        took = time.process_time() - began
        self._scan_at = now + max(SCAN_SECONDS, took / SCAN_SHARE)
        self._soon_at = now + max(SOON_SECONDS, took / SOON_SHARE)


def _count_network_bytes() -> dict[str, int]:
    """All bytes since the node booted, without loopback; RDMA passes the kernel by and has counters of its own."""
    counts: dict[str, tuple[int, int]] = {}
    for line in procfs.read_kernel_file("/proc/net/dev").split(b"\n"):
        name, colon, fields = line.decode("ascii", "replace").partition(":")
        if colon and name.strip() != "lo":
            counts[name.strip()] = int(fields.split()[0]), int(fields.split()[8])
    # A bridge or bond counts again what its adapters carry; in a container there may be nothing else.
    real = {name: pair for name, pair in counts.items() if os.path.exists("/sys/class/net/%s/device" % name)} or counts
    for device in os.listdir(RDMA) if os.path.isdir(RDMA) else ():
        for port in os.listdir("%s/%s/ports" % (RDMA, device)):
            paths = ["%s/%s/ports/%s/counters/port_%s_data" % (RDMA, device, port, way) for way in ("rcv", "xmit")]
            # In words of four bytes.
            received, sent = (4 * int(procfs.read_kernel_file(path) or 0) for path in paths)
            real["%s/%s" % (device, port)] = received, sent
    return {"received": sum(pair[0] for pair in real.values()), "sent": sum(pair[1] for pair in real.values())}
