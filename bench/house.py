"""The house: how fast the sandbox comes up, and how a check of many hosts compares with pdsh on the same hosts."""

import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import monotonic

from aboard.sandbox import Host, Sandbox
from figures import Figures, main

# Both sides with OpenSSH's default key exchange, then both with the cheaper one.
EXCHANGES = {"default kex": "", "curve25519": "KexAlgorithms curve25519-sha256\n"}

SIMULATED = """
import asyncio, json, resource, sys
from time import monotonic
from aboard.checks import (host, reach)
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.flows.check.check_cluster import check_cluster
from aboard.transport.open_file_limit import raise_open_file_limit
from aboard.testing.simulated_transport import (SimulatedTransport, run_simulator)

async def measure(count):
    cluster = Cluster(nodes=tuple(Node(name=f"s{number}") for number in range(count)))
    raise_open_file_limit(count)
    async with run_simulator() as path:
        began = monotonic()
        subjects = (reach.SUBJECT, host.SUBJECT)
        report = await check_cluster(cluster, subjects, transport_for=lambda node: SimulatedTransport(path))
        seconds = monotonic() - began
    assert not report.findings, report.findings[:3]
    return seconds

seconds = asyncio.run(measure(int(sys.argv[1])))
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


SPREAD = (Path(__file__).parents[1] / "tests" / "ground" / "drivers" / "spread_head.py").read_text()


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's one switch
    """Figures of the house."""
    # The size stays: at a smaller one, start-up would be most of what is compared.
    many = 64
    rounds = 3 if quick else 7
    with _sandbox(figures, 4, 10) as box:
        _against_scp(figures, box, 50 if quick else 200)
    with _sandbox(figures, many, 60) as box:
        # Quick: as most people's ssh does it. The cheaper exchange leaves less for start-up to hide behind.
        for exchange, config in list(EXCHANGES.items())[: 1 if quick else None]:
            box.head.run(["sh", "-c", "umask 077; mkdir -p ~/.ssh; cat > ~/.ssh/config"], input=config)
            _against_pdsh(figures, box.head, many, rounds, exchange)
    _simulated(figures, quick=quick)


def _sandbox(figures: Figures, nodes: int, bar: float) -> Sandbox:
    began = monotonic()
    box = Sandbox.up(f"bench-house-{os.getpid()}-{nodes}", nodes=nodes, temporary=True)
    figures.add(f"sandbox up, {nodes} hosts", monotonic() - began, bar, unit="s")
    return box


def _against_pdsh(figures: Figures, head: Host, nodes: int, rounds: int, exchange: str) -> None:
    """One after the other, again and again: whatever else the machine does falls on both."""
    check = ["aboard", "check", "--only", "reach", "--hostfile", "hostfile"]
    pdsh = ["pdsh", "-R", "ssh", "-f", "64", "-w", f"n[1-{nodes}]", "python3", "-c", "pass"]
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_timed(head, check))
        theirs.append(_timed(head, pdsh))
    ratio = statistics.median(ours) / statistics.median(theirs)
    note = f"{statistics.median(ours):.2f} s against {statistics.median(theirs):.2f} s, median of {rounds}"
    figures.add(f"aboard check / pdsh -f 64, {nodes} hosts, {exchange}", ratio, 1.5, unit="×", note=note)


def _against_scp(figures: Figures, box: Sandbox, megabytes: int) -> None:
    """Files to four nodes at once: ours, hashed on both sides, against four scp, which prove nothing."""
    make = f"for n in 1 2 3 4; do head -c {megabytes // 4}M /dev/urandom > /private/model/$n; done"
    box.head.run(["sh", "-c", f"mkdir -p /private/model && {make}"])
    nodes = [host.name for host in box.nodes]
    copy = " & ".join(f"scp -qr /private/model {name}:/private/copied" for name in nodes) + " & wait"
    scp = _timed(box.head, ["sh", "-c", copy])
    ours = _timed(box.head, [sys.executable, "-c", SPREAD, "/private/model", "/private/model", *nodes])
    again = _timed(box.head, [sys.executable, "-c", SPREAD, "/private/model", "/private/model", *nodes])
    note = f"{ours:.1f} s against {scp:.1f} s; {again:.1f} s when all is there"
    figures.add(f"{megabytes} MB to 4 nodes / four scp at once", ours / scp, 3.0, unit="×", note=note)


def _timed(head: Host, argv: list[str]) -> float:
    began = monotonic()
    done = head.run(argv, timeout=120)
    seconds = monotonic() - began
    if done.returncode != 0:
        sys.exit(f"{argv[0]} failed with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return seconds


def _simulated(figures: Figures, *, quick: bool) -> None:
    sizes = (100, 200, 400) if quick else (250, 500, 1000)
    memory = []
    seconds = 0.0
    for size in sizes:
        done = subprocess.run(
            [sys.executable, "-c", SIMULATED, str(size)], capture_output=True, text=True, check=True, timeout=120
        )
        seconds, peak = (float(word) for word in done.stdout.strip("[]\n").split(","))
        memory.append(peak)
    figures.add(f"check of {sizes[-1]} simulated agents", seconds, 5, unit="s")
    # Linear: the second half of the agents costs no more each than the first, but for 4 MB of allocator noise.
    first, second = (memory[1] - memory[0]) / (sizes[1] - sizes[0]), (memory[2] - memory[1]) / (sizes[2] - sizes[1])
    spare = 4e6 / (sizes[2] - sizes[1])
    note = f"{memory[-1] / 1e6:.0f} MB at {sizes[-1]}; {first / 1e3:.1f} then {second / 1e3:.1f} kB for each agent"
    figures.add(
        "head's memory: growth per agent, upper half / lower", second / (first + spare), 1.1, unit="×", note=note
    )


if __name__ == "__main__":
    main("house", measure)
