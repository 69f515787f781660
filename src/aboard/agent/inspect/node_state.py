"""The state of the node around the ranks: memory and its limits, throttling, other processes, links, mounts, disks."""

from __future__ import annotations

import contextlib
import os
import time

from aboard.agent.inspect.kernel_log import read_kernel_log
from aboard.agent.procfs import SYSTEM, TICKS, USER, list_pids, read_environ, read_kernel_file, read_name, read_stat

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

CGROUPS = "/sys/fs/cgroup"
NEIGHBOURS = 5
# A tenth of a second each, usually; with fewer samples the shares are meaningless.
LEAST_PERIODS = 10
# Other processes below this share of a core are ignored.
LEAST_CORES = 0.1
MOST_MOUNTS = 64
GPUS = "/proc/driver/nvidia/gpus"
# The host's adapters, also those that a container of ranks was not given.
HCAS = "/sys/class/infiniband"
# The kernel's own file systems, which contain no user data.
_VIRTUAL = frozenset((
    "proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs", "securityfs", "pstore",
    "bpf", "configfs", "hugetlbfs", "fusectl", "autofs", "binfmt_misc", "nsfs", "rpc_pipefs",
))  # fmt: skip


class NodeCounters:
    """Counters that are read before and after, to report their growth."""

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.used = {pid: _read_cpu_seconds(pid) for pid in list_pids()}
        self.links = _read_links()
        self.resent = _read_retransmits()


def compute_rates(before: NodeCounters, after: NodeCounters, ours: Iterable[int]) -> dict[str, Any]:
    """CPU use of other processes and traffic of each link, per second."""
    elapsed = max(1e-3, after.at - before.at)
    own = set(ours)
    cores = {
        pid: (used - before.used[pid]) / elapsed
        for pid, used in after.used.items()
        if pid not in own and pid != os.getpid() and pid in before.used
    }
    # Our own, of the next generation, and niced.
    cores = {pid: used for pid, used in cores.items() if used < LEAST_CORES or not _is_standby(pid)}
    busiest = sorted((pid for pid in cores if cores[pid] >= LEAST_CORES), key=lambda pid: -cores[pid])[:NEIGHBOURS]
    rates: dict[str, Any] = {
        "neighbours": [{"pid": pid, "name": read_name(pid), "cores": round(cores[pid], 2)} for pid in busiest]
    }
    rates["others"] = round(sum(cores.values()), 2)
    if before.resent is not None and after.resent is not None:
        rates["resent"] = round((after.resent - before.resent) / elapsed, 1)
    rates["links"] = {
        name: {
            "state": figures["state"],
            "errors": figures["errors"],
            "changes": figures["changes"],
            "received": round((figures["received"] - before.links[name]["received"]) / elapsed),
            "sent": round((figures["sent"] - before.links[name]["sent"]) / elapsed),
        }
        for name, figures in after.links.items()
        if name in before.links
    }
    return rates


def read_node_state() -> dict[str, Any]:
    """What needs one reading: cores, load, memory, the limits of our cgroup, the end of the kernel log."""
    state: dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
    with contextlib.suppress(OSError):
        state["load"] = round(os.getloadavg()[0], 2)
    sizes = dict(line.split(b":", 1) for line in read_kernel_file("/proc/meminfo").split(b"\n") if b":" in line)
    for key, name in (("memory", b"MemTotal"), ("free", b"MemAvailable"), ("swap", b"SwapTotal")):
        if name in sizes:
            state[key] = int(sizes[name].split()[0]) * 1024
    state.update(_read_memory_limits(_find_control_group(b"memory")))
    kills = count_oom_kills()
    if kills is not None:
        state["oom_kills"] = kills
    state["quota"] = find_quota_file()
    state["gpus"], state["hcas"] = list_gpus(), _list_names(HCAS)
    kernel_lines = read_kernel_log()
    if kernel_lines is not None:
        state["kernel"] = kernel_lines
    return state


def list_gpus() -> list[str]:
    """The PCI addresses of the driver's GPUs, in the order in which nvidia-smi counts them."""
    return _list_names(GPUS)


def list_mounts() -> list[list[str]]:
    """Each mount as [mount point, type, source]; accesses none of them."""
    entries = []
    for line in read_kernel_file("/proc/self/mountinfo", 1 << 20).decode("utf-8", "replace").splitlines():
        words = line.split()
        with contextlib.suppress(ValueError, IndexError):
            rest = words.index("-")
            if words[rest + 1] not in _VIRTUAL:
                entries.append([_unescape_path(words[4]), words[rest + 1], _unescape_path(words[rest + 2])])
    return entries[-MOST_MOUNTS:]


def read_disk_usage(path: str) -> dict[str, Any]:
    """Free space; on a dead mount this never returns, so call it only in a process that may be killed."""
    try:
        room = os.statvfs(path)
    except OSError as error:
        return {"path": path, "why": str(error.strerror)}
    inodes = room.f_favail / room.f_files if room.f_files else 1.0
    size = room.f_frsize * room.f_blocks
    return {"path": path, "free": room.f_frsize * room.f_bavail, "size": size, "inodes": round(inodes, 4)}


def count_oom_kills() -> int | None:
    """How many processes of our cgroup the OOM killer killed; of the whole node where only that is known."""
    group = _find_control_group(b"memory")
    files = [os.path.join(group, name) for name in ("memory.events", "memory.oom_control")] if group else []
    for path in (*files, "/proc/vmstat"):
        for line in read_kernel_file(path).split(b"\n"):
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return None


def read_throttle_counts() -> tuple[int, int] | None:
    """In how many periods our cgroup had work, and in how many of those it was throttled."""
    group = _find_control_group(b"cpu")
    counts = {}
    for line in read_kernel_file(os.path.join(group, "cpu.stat")).split(b"\n") if group else ():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():  # noqa: PLR2004 - name and number
            counts[words[0]] = int(words[1])
    if b"nr_periods" not in counts:
        return None
    return counts[b"nr_periods"], counts.get(b"nr_throttled", 0)


def find_quota_file() -> str:
    """The cpu controller's directory of our cgroup, v1 or v2; "" where it is not visible."""
    group = _find_control_group(b"cpu")
    paths = [os.path.join(group, name) for name in ("cpu.max", "cpu.cfs_quota_us")] if group else []
    return next((path for path in paths if os.path.exists(path)), "")


def compute_throttled_share(before: tuple[int, int] | None) -> float | None:
    """The share of the periods since then in which our cgroup was throttled."""
    now = read_throttle_counts()
    if before is None or now is None or now[0] - before[0] < LEAST_PERIODS:
        return None
    return round((now[1] - before[1]) / (now[0] - before[0]), 3)


def _find_control_group(controller: bytes) -> str:
    """The directory of our cgroup, v1 or v2; "" where it is not visible, as in most containers."""
    for line in read_kernel_file("/proc/self/cgroup").split(b"\n"):
        _number, _, rest = line.partition(b":")
        names, _, path = rest.partition(b":")
        if controller in names.split(b",") or names == b"":
            tree = os.path.join(CGROUPS, controller.decode()) if names else CGROUPS
            for place in (tree + path.decode("utf-8", "replace"), tree):
                if os.path.exists(os.path.join(place, "cgroup.procs")):
                    return place
    return ""


def _read_memory_limits(group: str) -> dict[str, int]:
    limits = {}
    pairs = [("limit", "memory.max"), ("limit", "memory.limit_in_bytes")]
    pairs += [("held", "memory.current"), ("held", "memory.usage_in_bytes")]
    for key, name in pairs:
        text = read_kernel_file(os.path.join(group, name)).strip() if group else b""
        # Version 1 reports "unlimited" as a number that no machine has.
        if text.isdigit() and int(text) < 1 << 60:
            limits[key] = int(text)
    return limits


def _list_names(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def _is_standby(pid: int) -> bool:
    return b"\0ABOARD_STANDBY=" in b"\0" + read_environ(pid)


def _read_cpu_seconds(pid: int) -> float:
    fields = read_stat(pid)
    return (int(fields[USER]) + int(fields[SYSTEM])) / TICKS if len(fields) > SYSTEM else 0.0


def _read_links() -> dict[str, dict[str, Any]]:
    links: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/sys/class/net"):
            if name != "lo":
                base = "/sys/class/net/" + name
                counts = {key: _read_number(base + "/statistics/" + file) for key, file in _FIGURES}
                errors = sum(_read_number(base + "/statistics/" + file) for file in ("rx_errors", "tx_errors"))
                state = read_kernel_file(base + "/operstate", 32).decode("ascii", "replace").strip()
                changes = _read_number(base + "/carrier_changes")
                links[name] = dict(counts, errors=errors, state=state, changes=changes)
    return links


_FIGURES = (("received", "rx_bytes"), ("sent", "tx_bytes"))


def _read_number(path: str) -> int:
    text = read_kernel_file(path, 64).strip()
    return int(text) if text.isdigit() else 0


def _read_retransmits() -> int | None:
    """TCP segments retransmitted on all connections: snmp in /proc/net."""
    names: list[bytes] = []
    for line in read_kernel_file("/proc/net/snmp").split(b"\n"):
        if line.startswith(b"Tcp:"):
            if names:
                figures = dict(zip(names, line.split()))
                return int(figures.get(b"RetransSegs", b"0"))
            names = line.split()
    return None


def _unescape_path(text: str) -> str:
    """Spaces in paths are spelled as octal numbers: proc(5)."""
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
