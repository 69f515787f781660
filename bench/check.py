"""`aboard check`: false alarms, run time, and whether it names injected faults and its fixes work."""

import json
import os
import statistics
import subprocess
import sys
from time import monotonic

from aboard.sandbox import Host, Sandbox
from check_cases import CASES, Case
from figures import Figures, main
from one_case import Findings, Outcome, format_finding, run_check, try_case

NAME = f"bench-check-{os.getpid()}"
SIMULATED = """
import asyncio, json, sys
from time import monotonic
from aboard.doctor.network import subject as network
from aboard.doctor.reach import subject as reach
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.diagnoses import Severity
from aboard.engine.check.check_cluster import check_cluster
from aboard.transport.open_file_limit import raise_open_file_limit
from aboard.testing.simulated_transport import (SimulatedTransport, run_simulator)

async def measure(count):
    cluster = Cluster(nodes=tuple(Node(name=f"s{number}") for number in range(count)))
    raise_open_file_limit(count)
    async with run_simulator() as path:
        began = monotonic()
        subjects = (reach.SUBJECT, network.SUBJECT)
        report = await check_cluster(cluster, subjects, quick=True, transport_for=lambda node: SimulatedTransport(path))
        seconds = monotonic() - began
    codes = sorted({finding.code for finding in report.findings})
    return seconds, "network-sparse" in codes, [f.code for f in report.findings if f.severity > Severity.INFO][:5]

print(json.dumps(asyncio.run(measure(int(sys.argv[1])))))
"""


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures false alarms, seconds, named faults and working fixes of `aboard check`."""
    for nodes, runs in ((2, 2), (4, 2)) if quick else ((2, 20), (4, 20), (16, 20)):
        with Sandbox.up(f"{NAME}-{nodes}", nodes=nodes, temporary=True) as box:
            _measure_healthy(figures, box.head, nodes, runs)
    _measure_faults(figures, CASES[::8] if quick else CASES)
    if not quick:
        with Sandbox.up(f"{NAME}-64", nodes=64, temporary=True) as box:
            _seconds, alarms = _time_check(box.head, "--hostfile", "hostfile")
            figures.add("full check, 64 hosts", _seconds, 60, unit="s", note=_format_findings(alarms))
        _measure_simulated(figures, 4096)


def _measure_healthy(figures: Figures, head: Host, nodes: int, runs: int) -> None:
    alarms: list[str] = []
    times: dict[str, list[float]] = {"quick": [], "full": []}
    for _ in range(runs):
        for depth, flags in (("quick", ["--quick"]), ("full", [])):
            seconds, findings = _time_check(head, "--hostfile", "hostfile", *flags)
            times[depth].append(seconds)
            alarms += [format_finding(finding) for finding in findings if finding["severity"] != "info"]
    figures.add(f"false alarms, {nodes} healthy hosts, {runs} × quick and full", len(alarms), 0, note=" ".join(alarms))
    if nodes == 4:
        for depth, bar in (("quick", 3), ("full", 15)):
            figures.add(f"{depth} check, 4 hosts, median", statistics.median(times[depth]), bar, unit="s")


def _measure_faults(figures: Figures, cases: tuple[Case, ...]) -> None:
    """Injects each fault on fresh hosts, checks that it is named, types its fix, and checks again."""
    outcomes = []
    for case in cases:
        outcomes.append(outcome := try_case(case, f"{NAME}-fault"))
        codes = " ".join(code for code, _ in case.named)
        how = f"by hand: {case.by_hand}" if case.by_hand else f"{len(outcome.typed)} lines typed"
        what = f"  {case.row:>3}  {case.describe():<66.66} {codes:<28} {outcome.seconds:5.1f} s"
        print(f"{what}  {_format_verdict(outcome)}; {how}", flush=True)
    named = [outcome for outcome in outcomes if outcome.missed or outcome.unfolded]
    typed = [outcome for outcome in outcomes if not outcome.case.by_hand]
    left = [outcome for outcome in typed if outcome.left]
    figures.add(f"faults not named by code and node, of {len(cases)}", len(named), 0, note=_format_cases(named))
    figures.add(f"faults not fixed by their printed fix, of {len(typed)}", len(left), 0, note=_format_cases(left))
    healed = [outcome for outcome in outcomes if outcome.case.by_hand and outcome.left]
    mended = len(cases) - len(typed)
    figures.add(
        f"faults still reported after being healed by hand, of {mended}", len(healed), 0, note=_format_cases(healed)
    )


def _format_verdict(outcome: Outcome) -> str:
    if outcome.missed or outcome.unfolded:
        return f"MISSED: {_format_findings(outcome.findings)}"
    return f"named, NOT FIXED: {' '.join(outcome.left)}" if outcome.left else "named, fixed"


def _format_cases(outcomes: list[Outcome]) -> str:
    return "; ".join(outcome.case.describe() for outcome in outcomes)


def _measure_simulated(figures: Figures, count: int) -> None:
    argv = [sys.executable, "-c", SIMULATED, str(count)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600)
    seconds, sparse, alarms = json.loads(done.stdout)
    note = f"sparse mesh {'reported' if sparse else 'NOT reported'}; {alarms}"
    figures.add(f"quick check of {count} simulated agents", seconds, 60, unit="s", note=note)


def _time_check(head: Host, *words: str) -> tuple[float, Findings]:
    began = monotonic()
    findings = run_check(head, *words)
    return monotonic() - began, findings


def _format_findings(findings: Findings) -> str:
    return " ".join(map(format_finding, findings[:4])) or "no finding"


if __name__ == "__main__":
    main("check", measure)
