"""Troubles from outside for the second set of blind faults."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.network.links import LinkDown
from faults_stage import Stage, wait_until
from faults_troubles import Both, Helper, Typed, pids_of

_FREEZER = Path("/sys/fs/cgroup/freezer")

# -- disks ------------------------------------------------------------------------------------------------------

# A file system whose server has died: it is still mounted, and each call on it fails.
_SEVERED = """
import ctypes, os, time
server = os.open("/dev/fuse", os.O_RDWR)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % server
done = ctypes.CDLL(None, use_errno=True).mount(b"severed", b"/private/data", b"fuse", 0, options.encode())
os.close(server)
print("ready" if done == 0 else "failed", flush=True)
time.sleep(3600)
"""
# A file system with the one file that is read in each step, whose server takes half a second for each read: fuse(4),
# and the kernel's include/uapi/linux/fuse.h for the numbers.
_SLOW = """
import ctypes, os, struct, time
data = open("/private/data/shard.bin", "rb").read()
server = os.open("/dev/fuse", os.O_RDWR)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % server
done = ctypes.CDLL(None, use_errno=True).mount(b"slow", b"/private/data", b"fuse", 0, options.encode())
print("ready" if done == 0 else "failed", flush=True)

def attributes(node):
    mode, size = (0o40755, 0) if node == 1 else (0o100666, len(data))
    return struct.pack("=QQQQQQIIIIIIIIII", node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

def answer(code, node, rest):
    if code == 26:
        return struct.pack("=IIIIHHIIHHI28x", 7, 31, 65536, 0, 12, 10, 65536, 1, 0, 0, 0)
    if code == 1:
        return struct.pack("=QQQQII", 2, 0, 1, 1, 0, 0) + attributes(2) if rest == b"shard.bin\\0" else -2
    if code == 3:
        return struct.pack("=QII", 1, 0, 0) + attributes(node)
    if code in (14, 27):
        return struct.pack("=QII", 0, 1, 0)
    if code == 15:
        time.sleep(0.5)
        _file, offset, size = struct.unpack_from("=QQI", rest)
        return data[offset : offset + size]
    return b"" if code in (18, 25, 29) else -38

while True:
    asked = os.read(server, 1 << 20)
    _size, code, number, node = struct.unpack_from("=IIQQ", asked)
    if code in (2, 42):
        continue
    said = answer(code, node, asked[40:])
    wrong, body = (said, b"") if isinstance(said, int) else (0, said)
    os.write(server, struct.pack("=IiQ", 16 + len(body), wrong, number) + body)
"""
_NOT_MOUNTED = "umount -l /private/data"
SEVERED = Helper(code=_SEVERED, after=_NOT_MOUNTED)
SLOW_MOUNT = Helper(code=_SLOW, after=_NOT_MOUNTED)
# Many small files, as logs and caches leave them: there is room, and no number for another file.
NO_INODES = Typed(
    lines="mount -t tmpfs -o nr_inodes=300,mode=777 small /private/out; "
    "number=0; while { : > /private/out/log-$number; } 2> /dev/null; do number=$((number + 1)); done",
    undo="umount -l /private/out",
)
READ_ONLY = Typed(
    lines="mount --bind /private/out /private/out; mount -o remount,ro,bind /private/out",
    undo="umount -l /private/out",
)

# -- networks ---------------------------------------------------------------------------------------------------

_MUTE = """
import socket, time
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 53))
print("ready", flush=True)
time.sleep(3600)
"""
MUTE_NAMES = Both(
    parts=(
        Helper(code=_MUTE, on_head=True),
        Typed(
            lines="cp /etc/resolv.conf /run/resolv; server=$(getent ahostsv4 head | head -n 1 | cut -d ' ' -f 1); "
            "echo nameserver $server > /etc/resolv.conf",
            undo="cat /run/resolv > /etc/resolv.conf",
        ),
    )
)
# As when something opens connections faster than they are forgotten: the few that there are have been taken.
_TAKE_PORTS = """
import socket, time
held = [socket.create_server(("", port)) for port in (61000, 61001)]
open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("61000 61001")
print("ready", flush=True)
time.sleep(3600)
"""
NO_PORTS = Helper(code=_TAKE_PORTS, after="echo 32768 60999 > /proc/sys/net/ipv4/ip_local_port_range")
# As when a lease was not renewed; the carrier stays.
ADDRESS_LOST = Typed(
    lines="ip -o -4 addr show eth1 | awk '{print $4}' > /run/address; ip addr del $(cat /run/address) dev eth1",
    undo="ip addr add $(cat /run/address) dev eth1",
)
# A firewall that knows of no connection that was made before: new ones pass, and the old ones carry nothing.
FORGETFUL = Typed(
    lines="echo 0 > /proc/sys/net/netfilter/nf_conntrack_tcp_loose; nft -f - <<< 'table ip forgetful { chain input "
    '{ type filter hook input priority 0; iifname "eth1" ct state invalid drop; }; }\'',
    undo="nft delete table ip forgetful; echo 1 > /proc/sys/net/netfilter/nf_conntrack_tcp_loose",
)


@dataclass(frozen=True, kw_only=True)
class SmallerPackets:
    """A card is told to take small packets only, in the middle of connections that send large ones."""

    @contextlib.contextmanager
    def on(self, stage: Stage, node: str, rank: int) -> Iterator[None]:
        host = stage.box.host(node)
        try:
            # One packet at a time: what the switch passes on as a bundle isn't measured by its size.
            stage.box.switch(["ip", "link", "set", host.ports[1], "gso_max_segs", "1"])
            host.run(["ip", "link", "set", "eth1", "mtu", "900"], root=True)
            yield
        finally:
            host.run(["ip", "link", "set", "eth1", "mtu", "1500"], root=True)
            stage.box.switch(["ip", "link", "set", host.ports[1], "gso_max_segs", "65535"])


@dataclass(frozen=True, kw_only=True)
class LooseCable:
    """The carrier goes and comes: three seconds without, one with."""

    @contextlib.contextmanager
    def on(self, stage: Stage, node: str, rank: int) -> Iterator[None]:
        over = threading.Event()

        def shake() -> None:
            while not over.is_set():
                with inject_temporarily(stage.box, stage.box.host(node), LinkDown(network="fabric")):
                    over.wait(3.0)
                over.wait(1.0)

        shaking = threading.Thread(target=shake)
        shaking.start()
        try:
            yield
        finally:
            over.set()
            shaking.join()


# -- processes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Traced:
    """Somebody looks at a rank with gdb, and is called away."""

    @contextlib.contextmanager
    def on(self, stage: Stage, node: str, rank: int) -> Iterator[None]:
        host = stage.box.host(node)
        [pid] = [_own_number(pid) for pid in pids_of(host, "rank", rank)]
        look = ["gdb", "-nx", "-q", "-iex", "set auto-solib-add off", "-p", str(pid)]
        debugger = host.popen(
            look, root=True, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            assert wait_until(lambda: _traced(host.run(["cat", f"/proc/{pid}/status"]).stdout), 30), (
                "gdb did not attach"
            )
            yield
        finally:
            debugger.kill()
            debugger.wait()


@dataclass(frozen=True, kw_only=True)
class Paused:
    """Both ranks' container is paused, as by `docker pause`: frozen by their control group, with no signal."""

    @contextlib.contextmanager
    def on(self, stage: Stage, node: str, rank: int) -> Iterator[None]:
        group = _FREEZER / f"aboard-{stage.box.name}-{node}"
        pids = pids_of(stage.box.host(node), "both", rank)
        group.mkdir(exist_ok=True)
        try:
            for pid in pids:
                (group / "cgroup.procs").write_text(str(pid))
            (group / "freezer.state").write_text("FROZEN")
            yield
        finally:
            (group / "freezer.state").write_text("THAWED")
            for number in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (_FREEZER / "cgroup.procs").write_text(number)
            wait_until(lambda: _removed(group), 10)


def _own_number(pid: int) -> int:
    """What a process is numbered as in its own host."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].partition("\n")[0].split()[-1])


def _traced(status: str) -> bool:
    return "State:\tt" in status


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()
