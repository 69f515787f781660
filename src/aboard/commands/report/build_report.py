"""Reads the record of a run and builds what a page shows of it: plain JSON values, scrubbed and thinned.

Columns of numbers are tuples, which the scrubber leaves as they are.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from time import time
from typing import Any, cast

from aboard import __version__
from aboard.commands.report.last_output import read_last_output
from aboard.commands.report.lateness_map import describe_lateness, fold_lateness
from aboard.commands.report.metric_table import MetricTable, collect_metrics, describe_ledger, describe_metrics
from aboard.commands.report.node_series import collect_node_series, describe_nodes
from aboard.commands.report.page_data import Moment, NodeRanks, PageData, RunData, Verdict
from aboard.commands.report.rank_series import RankSeries, describe_ranks
from aboard.commands.report.run_settings import compare_settings, read_settings
from aboard.commands.report.run_timeline import (
    Timeline,
    build_timeline,
    list_spells,
    list_verdicts,
    skip_repeated_saves,
)
from aboard.commands.report.thin_series import choose_rows
from aboard.commands.shared.json_output import SCHEMA, to_plain_value
from aboard.core.cluster.node_sets import fold_names
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.diagnoses.untrusted import escape_text
from aboard.engine.records.bundle import redact_plan_value
from aboard.engine.records.status import summarize_folded_run
from aboard.lazy_dataclass import dataclass
from aboard.record.event_log import read_events
from aboard.record.json_documents import read_document, read_findings, read_training
from aboard.record.lateness_log import read_lateness
from aboard.record.measurement_log import read_measurements
from aboard.record.metrics_log import MetricsLine, read_metrics
from aboard.record.node_samples import read_node_samples
from aboard.record.record_lines import select_figures
from aboard.record.run_directory import RunDirectory

MOST_RUNS = 8
_MOST_SAVES = 400
_MOST_RANKS_SHOWN = 3
_LONGEST_TEXT = 4_000
_NOT_COMPARED = ("lateness", "samples", "spells")
_MALFORMED = (ArithmeticError, AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What a page leaves out, and its scrubber."""

    scrub: SecretScrubber
    output: bool = True
    # Of several runs on one page, the parts that can't be compared are left out.
    compared: bool = False


def build_report(runs: Sequence[RunDirectory], options: ReportOptions) -> PageData:
    """The data of a page about one run, or of one that compares several."""
    compared = replace(options, compared=len(runs) > 1, output=options.output and len(runs) == 1)
    described = [describe_run(run, compared) for run in runs]
    removed = {kind: count for kind, count in sorted(options.scrub.removed.items()) if count}
    page = PageData(schema=SCHEMA, aboard=__version__, made=round(time(), 3), runs=described, removed=removed)
    if len(runs) > 1:
        page["differences"] = compare_settings([run["settings"] for run in described])
    return page


def describe_run(run: RunDirectory, options: ReportOptions) -> RunData:
    """Everything that the record of one run has; a part that can't be read says so in `unreadable`."""
    unreadable: list[str] = []
    read = partial(_try_reading, unreadable)
    plan = read("plan", lambda: _read_plan(run), {})
    timeline: Timeline = read(
        "events",
        lambda: build_timeline(run.id, read_events(run.events, skip=skip_repeated_saves())),
        build_timeline(run.id, ()),
    )
    lines = read_metrics(run.metrics)
    table: MetricTable = read("metrics", lambda: collect_metrics(lines), MetricTable())
    series = read("nodes", lambda: collect_node_series(read_node_samples(run.samples)), {})
    ranks = RankSeries()
    if not table.steps:
        ranks, sampled = read("samples", lambda: _read_rank_samples(run, timeline), (ranks, []))
        table = read("metrics", lambda: collect_metrics(sampled), table)
    # A conductor that was killed has not recorded the end.
    over = timeline.run.finished is not None
    until = max(
        timeline.last, *([] if over else [*table.times[-1:], *(each.times[-1] for each in series.values())]), 0.0
    )
    summary = read("summary", lambda: summarize_folded_run(run, timeline.run, plan), None)
    findings = list(summary.findings) if summary else read("findings", lambda: read_findings(run.findings), [])
    nodes = read("plan", lambda: _list_nodes(plan), [])
    # Nodes report in any order.
    places = {node["name"]: place for place, node in enumerate(nodes)}
    series = dict(sorted(series.items(), key=lambda each: places.get(each[0], len(places))))
    by_rank = {rank: node["name"] for node in nodes for rank in node["ranks"]}
    start = timeline.began or run.began
    spells = list_spells(timeline, until)
    folded = read(
        "lateness",
        lambda: fold_lateness(read_lateness(run.lateness), start=start, stop=until, ranks=_count_ranks(plan, by_rank)),
        fold_lateness((), start=start, stop=until, ranks=1),
    )
    described: RunData = {
        "id": run.id,
        "state": summary.state if summary else "unknown",
        "note": summary.note if summary else "",
        "program": _name_program(plan),
        "command": _get_text(redact_plan_value({"command": plan.get("command")})["command"]),
        "directory": _get_text(plan.get("cwd")),
        "training": read_training(plan) is not None,
        "world": _count_ranks(plan, by_rank),
        "nodes": nodes,
        "nodes_text": fold_names(tuple(node["name"] for node in nodes)),
        "began": round(start, 3),
        "until": round(until, 3),
        "step": summary.step if summary else None,
        "steps": table.total_steps,
        "goodput": summary.goodput if summary else None,
        "verdicts": read("verdicts", lambda: list_verdicts(timeline, findings), []),
        "attempts": [{"number": each.number, "at": round(each.at, 3), "step": each.step} for each in timeline.attempts],
        "checkpoints": _list_checkpoints(timeline),
        "nonfinite": [(step, round(at, 2)) for step, at in table.nonfinite[:_MOST_SAVES]],
        "metrics": read("metrics", lambda: describe_metrics(table), None),
        "ledger": read("ledger", lambda: describe_ledger(spells, table), {}),
        "spells": [(spell.kind, round(spell.start, 3), round(spell.stop, 3)) for spell in spells[:2_000]],
        "lateness": read("lateness", lambda: describe_lateness(folded, by_rank), {"measured": False, "why": ""}),
        "samples": read("nodes", lambda: describe_nodes(series), None),
        "ranks": read("ranks", lambda: describe_ranks(ranks, by_rank), None),
        "settings": read("plan", lambda: read_settings(plan), {}),
        "output": [],
        "dropped": _describe_dropped(timeline, lines.dropped),
        "unreadable": [],
    }
    if options.output:
        printed = _choose_ranks(described["verdicts"], timeline)
        described["output"] = read("logs", lambda: read_last_output(run, printed, options.scrub), [])
    described["unreadable"] = unreadable + [f"{timeline.unreadable} events"] * bool(timeline.unreadable)
    left_out = ("output", *(_NOT_COMPARED if options.compared else ()))
    shown = {name: value for name, value in described.items() if name not in left_out}
    return {**cast("RunData", _cut_texts(options.scrub.value(shown))), "output": described["output"]}


def _cut_texts(value: Any) -> Any:
    """Texts are cut after they are scrubbed, since a part of a key does not look like one."""
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]}…"
    if isinstance(value, dict):
        return {name: _cut_texts(each) for name, each in value.items()}
    return [_cut_texts(each) for each in value] if isinstance(value, list) else value


def _try_reading(unreadable: list[str], what: str, build: Callable[[], Any], otherwise: Any) -> Any:
    """What can be built of a part; the reason why it can't be is added to `unreadable`."""
    try:
        return build()
    except _MALFORMED as error:
        unreadable.append(f"{what}: {type(error).__name__}: {escape_text(str(error), 200)}")
        return otherwise


def _read_rank_samples(run: RunDirectory, timeline: Timeline) -> tuple[RankSeries, list[MetricsLine]]:
    """Steps and memory of ranks, and the metrics that older versions recorded: what the head showed every 10 s."""
    ranks, lines, steps = RankSeries(), list[MetricsLine](), set[tuple[int, int]]()
    starts = [each.at for each in timeline.attempts]
    for sample in read_measurements(run.samples):
        children = sample.figures.get("children")
        for child, figures in children.items() if isinstance(children, dict) else ():
            if not isinstance(figures, dict):
                continue
            ranks.add(child, sample.at, figures)
            metrics = select_figures(figures.get("metrics"))
            step, loss = metrics.get("step"), metrics.get("loss")
            generation = max(1, bisect_right(starts, sample.at))
            if step is not None and loss is not None and (generation, int(step)) not in steps:
                steps.add((generation, int(step)))
                metrics.pop("eval_loss", None)
                lines.append(MetricsLine(at=sample.at, generation=generation, step=int(step), figures=metrics))
    return ranks, lines


def _read_plan(run: RunDirectory) -> dict[str, Any]:
    plan = read_document(run.plan)
    return plan if isinstance(plan, dict) else {}


def _list_nodes(plan: Mapping[str, Any]) -> list[NodeRanks]:
    """The nodes and their ranks."""
    found: list[NodeRanks] = []
    for node in plan.get("nodes") or ():
        ranks = [start["rank"] for start in node.get("starts") or () if isinstance(start.get("rank"), int)]
        found.append({"name": escape_text(str(node.get("name"))), "ranks": tuple(sorted(ranks))})
    return found


def _count_ranks(plan: Mapping[str, Any], by_rank: Mapping[int, str]) -> int:
    world = plan.get("world")
    return min(world, 2**17) if isinstance(world, int) and world > 0 else max(1, len(by_rank))


def _name_program(plan: Mapping[str, Any]) -> str:
    training = read_training(plan)
    if training is not None:
        return _get_text(f"aboard train, model {training.get('model')}")
    program = plan.get("program")
    return _get_text(program.get("target")) if isinstance(program, dict) else ""


def _get_text(value: object) -> str:
    return to_plain_value(value) if isinstance(value, str) else ""


def _list_checkpoints(timeline: Timeline) -> list[Moment]:
    rows = choose_rows([[at for _, at in timeline.checkpoints]], buckets=_MOST_SAVES // 2)
    return [
        {
            "name": name,
            "at": round(at, 2),
            "step": int(digits) if (digits := name.rpartition("-")[2]).isdecimal() else None,
        }
        for name, at in (timeline.checkpoints[row] for row in rows)
    ]


def _choose_ranks(verdicts: Sequence[Verdict], timeline: Timeline) -> list[int]:
    """Whose output is shown: the ranks that the last verdicts name, the first that died, and rank 0."""
    first = timeline.run.generation.first_death
    named = [rank for verdict in verdicts if verdict["severity"] != "info" for rank in verdict["ranks"][:1]]
    died = [first.rank] if first is not None else []
    return [*islice((rank for rank in dict.fromkeys([*died, *named]) if rank), _MOST_RANKS_SHOWN - 1), 0]


def _describe_dropped(timeline: Timeline, metrics: int) -> list[str]:
    lines = [f"{metrics:,} lines of metrics were thinned out or lost"] if metrics else []
    return [*lines, *to_plain_value(list(timeline.run.notices.values()))]
