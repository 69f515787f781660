"""Plans that Aboard made of scripts while it read them without running them, against those of the same, captured.

Each entry of bench/script_cases/goldens has a script, what the reader of that time made of it (`golden`), and, where
capturing it gives another plan or refusal, that one (`plan` or `refused`), with the reason why it is better, or worse.
"""

import os
import shlex
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from aboard.lazy_dataclass import dataclass
from aboard.sandbox import Sandbox
from figures import Figures, main
from scripts import SLOTS, Case, ScriptCases, Verdict

GOLDENS = Path(__file__).with_name("script_cases") / "goldens"
# Scripts of Slurm run in a job.
JOB = ("-N2", f"--gpus-per-node={SLOTS}", "--cpus-per-task=2")


class Comparison(Enum):
    """How a plan compares with the golden one."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse, as documented"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Golden:
    """One entry: the case as it was, and as it is now; why it is `better` or `worse` if they differ."""

    was: Case
    now: Case
    options: tuple[str, ...] = ()
    better: str = ""
    worse: str = ""


def load_goldens(kind: str) -> list[Golden]:
    """The scripts over ssh (`ssh`), or those of Slurm (`slurm`)."""
    return [_load_golden(raw) for raw in yaml.safe_load((GOLDENS / f"{kind}.yaml").read_text())]


def compare(bench: ScriptCases, golden: Golden) -> tuple[Comparison, str]:
    """Runs a script up to its launcher; also what is better, or what differs."""
    done = bench.start(golden.now, *golden.options)
    outcome = bench.judge(golden.was, done)
    if outcome.verdict is Verdict.RIGHT:
        return Comparison.SAME, ""
    if golden.was is not golden.now:
        outcome = bench.judge(golden.now, done)
        if outcome.verdict is Verdict.RIGHT:
            return (Comparison.BETTER, golden.better) if golden.better else (Comparison.WORSE, golden.worse)
    return Comparison.OTHER, outcome.seen


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Compares what captured scripts become with the plans that were read from them; --quick leaves out Slurm's."""
    counts: Counter[Comparison] = Counter()
    for kind in ("ssh",) if quick else ("ssh", "slurm"):
        name = f"bench-goldens-{kind}-{os.getpid()}"
        with Sandbox.up(name, nodes=2, slots=SLOTS, slurm=kind == "slurm", temporary=True) as box:
            bench = ScriptCases(box, job=JOB if kind == "slurm" else ())
            for golden in load_goldens(kind):
                comparison, why = compare(bench, golden)
                counts[comparison] += 1
                print(f"    {golden.now.name:<26} {comparison.value}{f': {why}' if why else ''}", flush=True)
    note = ", ".join(f"{counts[each]} {each.value}" for each in Comparison)
    figures.add("plans that differ without a reason", counts[Comparison.OTHER], 0, note=note)


def _load_golden(raw: Mapping[str, Any]) -> Golden:
    was = _build_case(raw, raw["golden"])
    is_changed = "plan" in raw or "refused" in raw
    reasons = {kind: raw[kind] for kind in ("better", "worse") if kind in raw}
    assert len(reasons) == is_changed, f"{raw['name']}: a change and its reason belong together"
    now = _build_case(raw, raw["plan"] if "plan" in raw else {"refused": raw["refused"]}) if is_changed else was
    return Golden(was=was, now=now, options=tuple(raw.get("options", ())), **reasons)


def _build_case(raw: Mapping[str, Any], right: Mapping[str, Any]) -> Case:
    return Case(
        name=raw["name"],
        about="",
        command=tuple(shlex.split(raw["command"])),
        files=raw["files"],
        programs={},
        prepare="",
        plan=None if "refused" in right else right,
        refused=right.get("refused", ""),
        needs="",
        stand_in="",
        first="",
        quick=False,
    )


if __name__ == "__main__":
    main("script_goldens", measure)
