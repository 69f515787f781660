"""`aboard sync` against rsync: one large file to one host, many small files to four, and a kill in the middle."""

import os
import signal
import statistics
import subprocess
import sys
from time import monotonic

from aboard.sandbox import Host, Sandbox
from figures import Figures

TIMEOUT = 600.0
PLACE = "/private/sync"
MAKE_FILES = """
import os, sys
for number in range(int(sys.argv[1])):
    os.makedirs(str(number // 200), exist_ok=True)
    with open(f"{number // 200}/{number}", "wb") as file:
        file.write(os.urandom(1000))
"""
RSYNC = "rsync -a -e 'ssh -o BatchMode=yes'"


def compare_with_rsync(figures: Figures, *, megabytes: int, files: int, rounds: int) -> None:
    """The two take turns, so that other load on the machine affects both."""
    with Sandbox.up(f"bench-transfer-{os.getpid()}", nodes=4, slots=1, temporary=True) as box:
        _compare(figures, box, f"{megabytes} MB to one host", f"head -c {megabytes}M /dev/urandom > big", 1, rounds)
        small = f"{sys.executable} -c '{MAKE_FILES}' {files}"
        _compare(figures, box, f"{files:,} files to 4 hosts", small, 4, rounds)
        _kill_in_the_middle(figures, box, megabytes)


def _compare(figures: Figures, box: Sandbox, what: str, make: str, hosts: int, rounds: int) -> None:
    head, nodes = box.head, box.nodes[:hosts]
    _run(head, "sh", "-c", f"rm -rf {PLACE}; mkdir -p {PLACE} && cd {PLACE} && {make}")
    names = [node.name for node in nodes]
    copies = " & ".join(f"{RSYNC} {PLACE} {name}:/private/" for name in names)
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(_time_copy(box, nodes, "sh", "-c", f"{copies} & wait"))
        ours.append(_time_copy(box, nodes, "aboard", "sync", "--on", ",".join(names), PLACE))
    ratio = statistics.median(ours) / statistics.median(theirs)
    note = f"{statistics.median(ours):.2f} s against {statistics.median(theirs):.2f} s, median of {rounds}"
    figures.add(f"aboard sync / rsync -a, {what}", ratio, 1.2, unit="×", note=note)


def _time_copy(box: Sandbox, nodes: list[Host], *argv: str) -> float:
    for node in nodes:
        _run(node, "rm", "-rf", PLACE)
    began = monotonic()
    _run(box.head, *argv)
    seconds = monotonic() - began
    count = "find . -type f | wc -l; du -sb --apparent-size . | cut -f 1"
    expected = _run(box.head, "sh", "-c", f"cd {PLACE} && {count}").split()[0]
    for node in nodes:
        if _run(node, "sh", "-c", f"cd {PLACE} && {count}").split()[0] != expected:
            sys.exit(f"{argv[0]} left files out on {node.name}")
    return seconds


def _kill_in_the_middle(figures: Figures, box: Sandbox, megabytes: int) -> None:
    """Kills `aboard sync` once half of a file has arrived; the next sync sends only the rest."""
    head, node = box.head, box.nodes[0]
    _run(head, "sh", "-c", f"rm -rf {PLACE}; mkdir -p {PLACE}; head -c {megabytes}M /dev/urandom > {PLACE}/big")
    _run(node, "rm", "-rf", PLACE)
    sync = ["aboard", "sync", "--on", node.name, PLACE]
    process = head.popen(sync, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = monotonic() + TIMEOUT
    while _count_bytes(node) < megabytes * 1_000_000 // 2:
        if process.poll() is not None or monotonic() > deadline:
            sys.exit("the sync was over before it could be killed")
    process.send_signal(signal.SIGKILL)
    process.wait()
    figures.add("half files under their final name after a kill", float(_exists(node, f"{PLACE}/big")), 0)
    before = _read_sent(head)
    _run(head, *sync)
    share = (_read_sent(head) - before) / (megabytes * 1024 * 1024)
    figures.add("sent again after a kill at half", share, 0.6, unit="×", note="of the file's size")
    same = len({_run(host, "sha256sum", f"{PLACE}/big").split()[0] for host in (head, node)}) == 1
    figures.add("files that differ after the second sync", float(not same), 0)


def _count_bytes(node: Host) -> int:
    done = node.run(["sh", "-c", f"cat {PLACE}/.aboard-* 2>/dev/null | wc -c"])
    return int(done.stdout or 0)


def _exists(node: Host, path: str) -> bool:
    return node.run(["test", "-e", path]).returncode == 0


def _read_sent(head: Host) -> int:
    return int(_run(head, "cat", "/sys/class/net/eth0/statistics/tx_bytes"))


def _run(host: Host, *argv: str) -> str:
    done = host.run(list(argv), timeout=TIMEOUT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)[:200]} failed with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout
