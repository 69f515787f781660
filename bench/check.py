"""The check: how often it cries wolf, how long it takes, and whether it names what is wrong."""

import json
import os
import statistics
import subprocess
import sys
from time import monotonic

from aboard.sandbox import Host, Sandbox
from check_cases import CASES, Case
from figures import Figures, main
from one_case import Findings, Outcome, check, try_case, word

NAME = f"bench-check-{os.getpid()}"
SIMULATED = """
import asyncio, json, sys
from time import monotonic
from aboard.checks import (network, reach)
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
        subjects = (reach.SUBJECT, network.SUBJECT)
        report = await check_cluster(cluster, subjects, quick=True, transport_for=lambda node: SimulatedTransport(path))
        seconds = monotonic() - began
    codes = sorted({finding.code for finding in report.findings})
    return seconds, "network-sparse" in codes, [f.code for f in report.findings if f.severity > Severity.INFO][:5]

print(json.dumps(asyncio.run(measure(int(sys.argv[1])))))
"""


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's one switch
    """Figures of the check."""
    for nodes, runs in ((2, 2), (4, 2)) if quick else ((2, 20), (4, 20), (16, 20)):
        with Sandbox.up(f"{NAME}-{nodes}", nodes=nodes, temporary=True) as box:
            _healthy(figures, box.head, nodes, runs)
    _faults(figures, CASES[::8] if quick else CASES)
    if not quick:
        with Sandbox.up(f"{NAME}-64", nodes=64, temporary=True) as box:
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
            alarms += [word(finding) for finding in findings if finding["severity"] != "info"]
    figures.add(f"false alarms, {nodes} healthy hosts, {runs} × quick and full", len(alarms), 0, note=" ".join(alarms))
    if nodes == 4:
        for depth, bar in (("quick", 3), ("full", 15)):
            figures.add(f"{depth} check, 4 hosts, median", statistics.median(times[depth]), bar, unit="s")


def _faults(figures: Figures, cases: tuple[Case, ...]) -> None:
    """Each fault is put on hosts of its own, named, mended as its fix says, and seen to be gone."""
    outcomes = []
    for case in cases:
        outcomes.append(outcome := try_case(case, f"{NAME}-fault"))
        codes = " ".join(code for code, _ in case.named)
        how = f"by hand: {case.by_hand}" if case.by_hand else f"typed {len(outcome.typed)}"
        what = f"  {case.row:>3}  {case.describe():<66.66} {codes:<28} {outcome.seconds:5.1f} s"
        print(f"{what}  {_verdict(outcome)}; {how}", flush=True)
    named = [outcome for outcome in outcomes if outcome.missed or outcome.unfolded]
    typed = [outcome for outcome in outcomes if not outcome.case.by_hand]
    left = [outcome for outcome in typed if outcome.left]
    figures.add(f"faults not named by code and node, of {len(cases)}", len(named), 0, note=_listed(named))
    figures.add(f"faults not mended by their fix as typed, of {len(typed)}", len(left), 0, note=_listed(left))
    healed = [outcome for outcome in outcomes if outcome.case.by_hand and outcome.left]
    mended = len(cases) - len(typed)
    figures.add(f"faults still named after a mend by hand, of {mended}", len(healed), 0, note=_listed(healed))


def _verdict(outcome: Outcome) -> str:
    if outcome.missed or outcome.unfolded:
        return f"MISSED: {_said(outcome.findings)}"
    return f"named, NOT GREEN AFTER: {' '.join(outcome.left)}" if outcome.left else "named, green after"


def _listed(outcomes: list[Outcome]) -> str:
    return "; ".join(outcome.case.describe() for outcome in outcomes)


def _simulated(figures: Figures, count: int) -> None:
    argv = [sys.executable, "-c", SIMULATED, str(count)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600)
    seconds, sparse, alarms = json.loads(done.stdout)
    note = f"sparse mesh {'said' if sparse else 'NOT said'}; {alarms}"
    figures.add(f"quick check of {count} simulated agents", seconds, 60, unit="s", note=note)


def _check(head: Host, *words: str) -> tuple[float, Findings]:
    began = monotonic()
    findings = check(head, *words)
    return monotonic() - began, findings


def _said(findings: Findings) -> str:
    return " ".join(map(word, findings[:4])) or "no finding"


if __name__ == "__main__":
    main("check", measure)
