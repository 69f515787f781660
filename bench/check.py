"""The check: how often it cries wolf, how long it takes, and whether it names what is wrong."""

import json
import statistics
import subprocess
import sys
from time import monotonic
from typing import Any

from aboard.sandbox import Host, Sandbox
from aboard.sandbox.faults import broken
from check_cases import CASES, WORKDIR, Case
from figures import Figures, main

SIMULATED = """
import asyncio, json, sys
from time import monotonic
from aboard.checks import network, reach
from aboard.core.cluster import Cluster
from aboard.core.finding import Severity
from aboard.core.node import Node
from aboard.flows.check import check
from aboard.wires.limits import raise_files
from aboard.wires.simulated import SimulatedWire, simulator

async def measure(count):
    cluster = Cluster(nodes=tuple(Node(name=f"s{number}") for number in range(count)))
    raise_files(count)
    async with simulator() as path:
        began = monotonic()
        subjects = (reach.SUBJECT, network.SUBJECT)
        report = await check(cluster, subjects, quick=True, wire_of=lambda node: SimulatedWire(path))
        seconds = monotonic() - began
    codes = sorted({finding.code for finding in report.findings})
    return seconds, "network-sparse" in codes, [f.code for f in report.findings if f.severity > Severity.INFO][:5]

print(json.dumps(asyncio.run(measure(int(sys.argv[1])))))
"""


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's one switch
    """Figures of the check."""
    for nodes, runs in ((2, 2), (4, 2)) if quick else ((2, 20), (4, 20), (16, 20)):
        with Sandbox.up(name=f"bench-check-{nodes}", nodes=nodes) as box:
            _healthy(figures, box.head, nodes, runs)
    with Sandbox.up(name="bench-check-faults", nodes=4, fabric=True) as box:
        _faults(figures, box, CASES[::6] if quick else CASES)
    if not quick:
        with Sandbox.up(name="bench-check-64", nodes=64) as box:
            _seconds, alarms = _check(box.head, "--hostfile", "hostfile")
            figures.add("full check, 64 hosts", _seconds, 60, unit="s", note=_said(alarms))
        _simulated(figures, 4096)


def _healthy(figures: Figures, head: Host, nodes: int, runs: int) -> None:
    alarms: list[str] = []
    times: dict[str, list[float]] = {"quick": [], "full": []}
    for _ in range(runs):
        for depth, flags in (("quick", ["--quick"]), ("full", [])):
            seconds, findings = _check(head, "--hostfile", "hostfile", *flags)
            times[depth].append(seconds)
            alarms += [_word(finding) for finding in findings if finding["severity"] != "info"]
    figures.add(f"false alarms, {nodes} healthy hosts, {runs} × quick and full", len(alarms), 0, note=" ".join(alarms))
    if nodes == 4:
        for depth, bar in (("quick", 3), ("full", 15)):
            figures.add(f"{depth} check, 4 hosts, median", statistics.median(times[depth]), bar, unit="s")


def _faults(figures: Figures, box: Sandbox, cases: tuple[Case, ...]) -> None:
    """Each fault is put, named, taken away, and seen to be gone."""
    for host in box.nodes:
        host.run(["mkdir", "-p", WORKDIR])
    missed: list[str] = []
    for case in cases:
        config = f'cluster:\n  nodes: ["n[1-4] slots=2"]\n  fabric_address: "{{name}}i"\n  workdir: {case.workdir}\n'
        box.head.run(["sh", "-c", "cat > aboard.yaml"], input=config)
        flags = [] if case.full else ["--quick"]
        with broken(box, box.hosts[case.where], case.fault):
            seconds, findings = _check(box.head, *flags)
        _, after = _check(box.head, *flags)
        # The worst must be the cause; what it leads to is folded under it.
        first = findings[0] if findings else {"code": "nothing", "nodes": []}
        named = first["code"] in (case.code, case.or_code) and tuple(sorted(first["nodes"])) == case.nodes
        left = [_word(finding) for finding in after if finding["severity"] != "info"]
        if not named or left:
            missed.append(f"{case.fault.describe()} on {case.where}")
        verdict = "named" if named else f"MISSED: {_said(findings)}"
        mended = "" if not left else f" not green after: {left}"
        what = f"{case.fault.describe()} on {case.where}"
        print(f"  {case.row:>3}  {what:<55} {case.code:<28} {seconds:5.1f} s  {verdict}{mended}", flush=True)
    figures.add(f"faults not named by code and node, of {len(cases)}", len(missed), 0, note="; ".join(missed))


def _simulated(figures: Figures, count: int) -> None:
    argv = [sys.executable, "-c", SIMULATED, str(count)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600)
    seconds, sparse, alarms = json.loads(done.stdout)
    note = f"sparse mesh {'said' if sparse else 'NOT said'}; {alarms}"
    figures.add(f"quick check of {count} simulated agents", seconds, 60, unit="s", note=note)


def _check(head: Host, *argv: str) -> tuple[float, list[dict[str, Any]]]:
    began = monotonic()
    done = head.run(["aboard", "check", "--json", *argv], timeout=180)
    seconds = monotonic() - began
    if not done.stdout:
        sys.exit(f"aboard check failed: {done.stderr[-2000:]}")
    return seconds, json.loads(done.stdout)["findings"]


def _word(finding: dict[str, Any]) -> str:
    return f"{finding['code']}@{','.join(finding['nodes'])}"


def _said(findings: list[dict[str, Any]]) -> str:
    return " ".join(map(_word, findings[:4])) or "no finding"


if __name__ == "__main__":
    main("check", measure)
