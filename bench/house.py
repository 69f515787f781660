"""Infrastructure: sandbox start, `aboard check` against pdsh, file transfer against scp, memory per agent."""

import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import monotonic

from aboard.sandbox import Host, Sandbox
from figures import Figures, main

# Both tools with OpenSSH's default key exchange, then both with a cheaper one.
EXCHANGES = {"default kex": "", "curve25519": "KexAlgorithms curve25519-sha256\n"}

SIMULATED = """
import asyncio, json, resource, sys
from time import monotonic
from aboard.doctor.host import subject as host
from aboard.doctor.reach import subject as reach
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.engine.check.check_cluster import check_cluster
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


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures sandbox start, check against pdsh, transfer against scp, and memory per agent."""
    # Same size for --quick: with fewer hosts, start-up would dominate.
    many = 64
    rounds = 3 if quick else 7
    with _build_sandbox(figures, 4, 10) as box:
        _compare_with_scp(figures, box, 50 if quick else 200)
    with _build_sandbox(figures, many, 60) as box:
        # Quick: the default exchange only. With the cheaper one, start-up weighs more.
        for exchange, config in list(EXCHANGES.items())[: 1 if quick else None]:
            box.head.run(["sh", "-c", "umask 077; mkdir -p ~/.ssh; cat > ~/.ssh/config"], input=config)
            _compare_with_pdsh(figures, box.head, many, rounds, exchange)
    _measure_simulated(figures, quick=quick)


def _build_sandbox(figures: Figures, nodes: int, bar: float) -> Sandbox:
    began = monotonic()
    box = Sandbox.up(f"bench-house-{os.getpid()}-{nodes}", nodes=nodes, temporary=True)
    figures.add(f"sandbox up, {nodes} hosts", monotonic() - began, bar, unit="s")
    return box


def _compare_with_pdsh(figures: Figures, head: Host, nodes: int, rounds: int, exchange: str) -> None:
    """Alternates the two, so that other load on the machine affects both."""
    check = ["aboard", "check", "--only", "reach", "--hostfile", "hostfile"]
    pdsh = ["pdsh", "-R", "ssh", "-f", "64", "-w", f"n[1-{nodes}]", "python3", "-c", "pass"]
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_time_command(head, check))
        theirs.append(_time_command(head, pdsh))
    ratio = statistics.median(ours) / statistics.median(theirs)
    note = f"{statistics.median(ours):.2f} s against {statistics.median(theirs):.2f} s, median of {rounds}"
    figures.add(f"aboard check / pdsh -f 64, {nodes} hosts, {exchange}", ratio, 1.5, unit="×", note=note)


def _compare_with_scp(figures: Figures, box: Sandbox, megabytes: int) -> None:
    """Files to four nodes at once: ours, hashed on both sides, against four scp, which prove nothing."""
    make = f"for n in 1 2 3 4; do head -c {megabytes // 4}M /dev/urandom > /private/model/$n; done"
    box.head.run(["sh", "-c", f"mkdir -p /private/model && {make}"])
    nodes = [host.name for host in box.nodes]
    copy = " & ".join(f"scp -qr /private/model {name}:/private/copied" for name in nodes) + " & wait"
    scp = _time_command(box.head, ["sh", "-c", copy])
    ours = _time_command(box.head, [sys.executable, "-c", SPREAD, "/private/model", "/private/model", *nodes])
    again = _time_command(box.head, [sys.executable, "-c", SPREAD, "/private/model", "/private/model", *nodes])
    note = f"{ours:.1f} s against {scp:.1f} s; {again:.1f} s if all files are there"
    figures.add(f"{megabytes} MB to 4 nodes / four parallel scp", ours / scp, 3.0, unit="×", note=note)


def _time_command(head: Host, argv: list[str]) -> float:
    began = monotonic()
    done = head.run(argv, timeout=120)
    seconds = monotonic() - began
    if done.returncode != 0:
        sys.exit(f"{argv[0]} failed with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return seconds


def _measure_simulated(figures: Figures, *, quick: bool) -> None:
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
    # Linear: an agent of the second half costs no more than one of the first, apart from 4 MB of allocator noise.
    first, second = (memory[1] - memory[0]) / (sizes[1] - sizes[0]), (memory[2] - memory[1]) / (sizes[2] - sizes[1])
    spare = 4e6 / (sizes[2] - sizes[1])
    note = f"{memory[-1] / 1e6:.0f} MB at {sizes[-1]}; {first / 1e3:.1f} then {second / 1e3:.1f} kB per agent"
    figures.add(
        "head's memory: growth per agent, upper half / lower half", second / (first + spare), 1.1, unit="×", note=note
    )


if __name__ == "__main__":
    main("house", measure)
