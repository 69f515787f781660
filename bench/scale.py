"""The real conductor with a thousand simulated nodes of eight ranks: cost of start, steady state and termination."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from figures import Figures, main

RUN = Path(__file__).with_name("scale_run.py")
# Limit of the cost per node at the largest size / at the smallest.
GROWTH = 1.3
STAGES = {"train": "until all train", "steady": "steady state", "fail": "after a death", "stop": "after a stop"}


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures the conductor with simulated nodes."""
    sizes, steady = ((30, 100), 6.0) if quick else ((100, 300, 1000), 20.0)
    costs = {nodes: _measure_cost(nodes, steady) for nodes in sizes}
    for nodes, cost in costs.items():
        _add_figures(figures, nodes, cost, steady)
    least, most = sizes[0], sizes[-1]
    for what, words in STAGES.items():
        few, many = _compute_cost_per_node(costs[least], what, least), _compute_cost_per_node(costs[most], what, most)
        note = f"{few:.2f} and {many:.2f} ms" + " per second" * (what == "steady")
        figures.add(f"CPU per node, {words}: {most} nodes / {least} nodes", many / few, GROWTH, unit="×", note=note)


def _measure_cost(nodes: int, steady: float) -> dict[str, Any]:
    argv = [sys.executable, str(RUN), str(nodes), str(steady)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    cost: dict[str, Any] = json.loads(done.stdout)
    return cost


def _add_figures(figures: Figures, nodes: int, cost: dict[str, Any], steady: float) -> None:
    assert cost["steady"] >= steady, f"only {cost['steady']:.1f} s of steady state with {nodes} nodes"
    at = f"{nodes} × 8"
    figures.add(f"{at}: all ranks started", cost["start"], 30, unit="s", note=f"{cost['start_cpu']:.2f} s of CPU")
    figures.add(f"{at}: CPU until all train", cost["train_cpu"], 30, unit="s", note=f"in {cost['train']:.1f} s")
    drawing, pictures = cost["picture_cpu"] / cost["steady"], cost["pictures"] / cost["steady"]
    note = f"over {cost['steady']:.0f} s, {drawing:.3f} of them for {pictures:.1f} redraws per second"
    figures.add(f"{at}: cores in steady state", cost["steady_cpu"] / cost["steady"], 1.0, note=note)
    figures.add(f"{at}: oldest sample of any rank", cost["sample_age"], 3.0, unit="s")
    figures.add(f"{at}: longest time between two redraws", cost["picture_gap"], 3.0, unit="s")
    figures.add(
        f"{at}: from a death to verdict and termination", cost["fail"], 10, unit="s", note=_format_cpu(cost, "fail")
    )
    figures.add(f"{at}: from stop to termination of all", cost["stop"], 10, unit="s", note=_format_cpu(cost, "stop"))
    figures.add(f"{at}: peak memory", cost["megabytes"], 1024, unit="MB")
    figures.add(f"{at}: rank not named, or nodes not terminated", float(bool(cost["wrong"])), 0, note=cost["wrong"])


def _format_cpu(cost: dict[str, Any], what: str) -> str:
    return f"{cost[f'{what}_cpu']:.2f} s of CPU"


def _compute_cost_per_node(cost: dict[str, Any], what: str, nodes: int) -> float:
    """Milliseconds of CPU per node; in steady state, per second."""
    cpu: float = cost[f"{what}_cpu"]
    return 1e3 * cpu / nodes / (cost["steady"] if what == "steady" else 1.0)


if __name__ == "__main__":
    main("scale", measure)
