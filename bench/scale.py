"""A thousand nodes of eight ranks, acted, on the real conductor: what it takes to start, watch and end them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from figures import Figures, main

RUN = Path(__file__).with_name("scale_run.py")
# A node's share at the largest size against that at the size it is compared with.
GROWTH = 1.3
STAGES = {"train": "until all train", "steady": "in steady state", "fail": "after a death", "stop": "after a stop"}


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's one switch
    """Figures of the conductor over acted nodes."""
    sizes, steady = ((30, 100), 6.0) if quick else ((100, 300, 1000), 20.0)
    costs = {nodes: _cost(nodes, steady) for nodes in sizes}
    for nodes, cost in costs.items():
        _add(figures, nodes, cost, steady)
    least, most = sizes[0], sizes[-1]
    for what, words in STAGES.items():
        few, many = _per_node(costs[least], what, least), _per_node(costs[most], what, most)
        note = f"{few:.2f} and {many:.2f} ms" + " a second" * (what == "steady")
        figures.add(f"CPU of a node, {words}: {most} nodes over {least}", many / few, GROWTH, unit="×", note=note)


def _cost(nodes: int, steady: float) -> dict[str, Any]:
    argv = [sys.executable, str(RUN), str(nodes), str(steady)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    cost: dict[str, Any] = json.loads(done.stdout)
    return cost


def _add(figures: Figures, nodes: int, cost: dict[str, Any], steady: float) -> None:
    assert cost["steady"] >= steady, f"only {cost['steady']:.1f} s of steady state with {nodes} nodes"
    at = f"{nodes} × 8"
    figures.add(f"{at}: all ranks started", cost["start"], 30, unit="s", note=f"{cost['start_cpu']:.2f} s of CPU")
    figures.add(f"{at}: CPU until all train", cost["train_cpu"], 30, unit="s", note=f"in {cost['train']:.1f} s")
    drawing, pictures = cost["picture_cpu"] / cost["steady"], cost["pictures"] / cost["steady"]
    note = f"over {cost['steady']:.0f} s, {drawing:.3f} of it for {pictures:.1f} pictures a second"
    figures.add(f"{at}: cores in steady state", cost["steady_cpu"] / cost["steady"], 1.0, note=note)
    figures.add(f"{at}: oldest sample of any rank", cost["sample_age"], 3.0, unit="s")
    figures.add(f"{at}: longest time between two pictures", cost["picture_gap"], 3.0, unit="s")
    figures.add(f"{at}: from a death to the verdict, all ended", cost["fail"], 10, unit="s", note=_cpu(cost, "fail"))
    figures.add(f"{at}: from stop to all ended", cost["stop"], 10, unit="s", note=_cpu(cost, "stop"))
    figures.add(f"{at}: peak memory", cost["megabytes"], 1024, unit="MB")
    figures.add(f"{at}: rank not named, or nodes not ended", float(bool(cost["wrong"])), 0, note=cost["wrong"])


def _cpu(cost: dict[str, Any], what: str) -> str:
    return f"{cost[f'{what}_cpu']:.2f} s of CPU"


def _per_node(cost: dict[str, Any], what: str, nodes: int) -> float:
    """Milliseconds; in steady state, for each second of it."""
    cpu: float = cost[f"{what}_cpu"]
    return 1e3 * cpu / nodes / (cost["steady"] if what == "steady" else 1.0)


if __name__ == "__main__":
    main("scale", measure)
