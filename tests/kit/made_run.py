"""A small run as its conductor would have recorded it, with a restart, a verdict and a late rank."""

import json
from pathlib import Path
from typing import Any

from made_events import made_event
from made_findings import made_finding

from aboard.core.run.lateness import LatenessWindow, RankLateness
from aboard.diagnoses import Severity
from aboard.record.lateness_log import LatenessLog
from aboard.record.metrics_log import MetricsLine, MetricsLog
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record

TRAINING = {"model": "/shared/model", "output_dir": "/shared/out", "learning_rate": 0.1}


def make_run(folder: Path, *, node: str = "n2", said: str = "hello", rate: float = 0.1) -> RunDirectory:
    """Two ranks; the second attempt repeats steps 3 and 4 of the first, in which rank 1 was late."""
    run = RunDirectory(folder)
    run.make()
    record = Record.open(run, ranks=2)
    starts = [{"child": str(rank), "rank": rank} for rank in (0, 1)]
    env = {
        "ABOARD_TRAINING": json.dumps({**TRAINING, "learning_rate": rate}),
        "HF_TOKEN": "hf_secret",
        "NCCL_DEBUG": "INFO",
    }
    nodes = [{"name": name, "starts": starts[rank : rank + 1]} for rank, name in enumerate(("n1", node))]
    record.write_plan({"world": 2, "command": "aboard train", "cwd": "/work", "env": env, "nodes": nodes})
    failed = {
        "code": "died-killed",
        "seen": "it was killed",
        "nodes": [node],
        "action": "restart",
        "why": "it may pass",
    }
    for event in (
        made_event("generation", node="", at=100.0, number=1),
        made_event("phase", node="n1", at=105.0, child="0", rank=0, phase="group"),
        made_event("stepping", node="", at=110.0, start=0),
        made_event("saved", node="n1", at=125.0, child="0", checkpoint="step-000002", serial=1, files=[]),
        made_event("deciding", node="", at=150.0, why="it died", sign=148.0),
        made_event("recovering", node="", at=152.0, **failed, step=4, saved=2),
        made_event("generation", node="", at=155.0, number=2),
        made_event("stepping", node="", at=160.0, start=2),
        made_event("caught_up", node="", at=180.0),
        made_event("deciding", node="", at=200.0, why="all ranks finished"),
        made_event("finished", node="", at=200.0, why="all ranks finished", code=0, step=6),
    ):
        record.event(event)
    for rank, name in enumerate(("n1", node)):
        record.add_output(name, rank, "stdout", f"{said}\n".encode("utf-8", "surrogatepass"), 120.0)
        for at in range(100, 200, 10):
            figures = {"node": {"load": 1.0 + 5 * rank, "memory": 0.5, "received": at * 1e6}}
            record.samples(name, float(at), figures)
    slow: dict[str, Any] = {"code": "slow-rank", "severity": Severity.WARN, "nodes": (node,), "ranks": (1,)}
    record.write_findings([made_finding(fix="", seen="", why="", **slow)])
    record.close()
    _write_figures(run)
    return run


def _write_figures(run: RunDirectory) -> None:
    metrics = MetricsLog(run.metrics)
    for generation, steps, began in ((1, range(1, 5), 110.0), (2, range(3, 7), 160.0)):
        for place, step in enumerate(steps):
            loss = None if step == 6 else 1.0 / step + generation
            metrics.take(
                MetricsLine(
                    at=began + 10 * (place + 1),
                    generation=generation,
                    step=step,
                    figures={"loss": loss, "steps": 6.0, "tokens_per_second": 100.0},
                    seconds={"forward_backward": 8.0, "data": 1.5, "other": 0.5},
                )
            )
    metrics.close()
    lateness = LatenessLog(run.lateness)
    for at in range(120, 150, 10):
        late = {1: RankLateness(mean=0.02, worst=0.1, group="0")}
        lateness.take(LatenessWindow(at=float(at), count=100, interval=0.1, late=late, measured=((0, 1),)))
    lateness.close()
