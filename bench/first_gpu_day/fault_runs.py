"""Faults that are injected into the day's own ranks: what `aboard why` says, judged against what was injected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aboard.diagnoses.untrusted import Untrusted
from first_gpu_day.day_run import DayRun, Figure, Outcome
from first_gpu_day.gpu_day import GpuDay, format_logs, read_number
from first_gpu_day.training_runs import find_verdict


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is injected, and the codes that name it rightly."""

    kind: str
    injected: str
    codes: Sequence[str]
    # Words that its sentence must have: one code is for all exceptions.
    words: str = ""
    # All ranks of the node fail in the same way.
    whole_node: bool = False


FAULTS = (
    Fault(kind="kill", injected="kill -9 of one rank", codes=("run-killed",)),
    Fault(kind="stop", injected="SIGSTOP of one rank", codes=("run-rank-stopped",)),
    Fault(
        kind="memory",
        injected="one rank allocates until the GPU is full",
        codes=("log-gpu-memory", "run-raised"),
        words="out of memory",
    ),
    Fault(
        kind="hidden",
        injected="CUDA_VISIBLE_DEVICES is empty for all ranks of one node",
        codes=("gpu-hidden", "log-cuda-error", "run-raised"),
        words="CUDA",
        whole_node=True,
    ),
)


def inject_fault(day: GpuDay, fault: Fault) -> Outcome:
    """The last rank fails; the verdict has to name its node, and the rank or all of the node's."""
    name, victim = f"fault-{fault.kind}", day.world - 1
    options = ("--on-stall", "stop", "--check", "none")
    done = day.launch(name, "faulty.py", fault.kind, str(victim), options=options, minutes=3)
    lines = day.read_logs(name)
    texts = {"output": format_logs(lines), "aboard": done.output}
    reports = [each for each in day.read_reports(name) if each.get("fault") == fault.kind and each["rank"] == victim]
    if not reports:
        return Outcome(state="failed", seen=f"the fault was not injected: {done.last}", texts=texts)
    finding = find_verdict(day, name)
    if finding is None:
        return Outcome(state="differs", seen="no verdict", texts=texts)
    ranks = range(victim + 1 - day.slots, victim + 1) if fault.whole_node else [victim]
    figures = judge_verdict(fault, finding, node=day.nodes[-1], ranks=ranks)
    right = set(figures.values()) == {"right"}
    if (at := read_number(reports[0]["at"])) is not None:
        figures["seconds until all ranks were gone"] = round(done.ended - at, 1)
    texts["verdict"] = "\n".join(
        f"{key}: {finding.get(key)}" for key in ("code", "nodes", "ranks", "seen", "why", "fix")
    )
    seen = Untrusted(f"{finding.get('code')}: {finding.get('seen')}").visible(300)
    return Outcome(state="as expected" if right else "differs", seen=seen, figures=figures, texts=texts)


def judge_verdict(fault: Fault, finding: Mapping[str, Any], *, node: str, ranks: Sequence[int]) -> dict[str, Figure]:
    """Whether the verdict names what was injected, where, and in which ranks, if it names ranks."""
    held = {
        "cause": (finding.get("code") in fault.codes and fault.words in str(finding.get("seen")), "code"),
        "node": (finding.get("nodes") == [node], "nodes"),
        "ranks": (finding.get("ranks") in (list(ranks), []), "ranks"),
    }
    return {
        name: "right" if right else f"wrong: {Untrusted(str(finding.get(key))).visible()}"
        for name, (right, key) in held.items()
    }


FAULT_RUNS = tuple(
    DayRun(
        name=f"fault-{fault.kind}",
        minutes=2,
        drop=1 if fault.kind in ("kill", "stop") else 2,
        proves=f"the verdict on: {fault.injected}",
        perform=partial(inject_fault, fault=fault),
        question=f"{fault.injected}, in a small program of the day",
    )
    for fault in FAULTS
)
