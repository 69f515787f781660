"""What the report draws: metrics, samples of nodes and lateness, written within limits and read with care."""

import json
from pathlib import Path
from typing import Any

import pytest

from aboard.core.run.lateness import LatenessWindow, RankLateness, expand_ranges, fold_ranks, merge_windows
from aboard.record.lateness_log import LIMIT, LatenessLog, read_lateness
from aboard.record.measurement_log import MeasurementLog, NodeMeasurement
from aboard.record.metrics_log import MetricsLine, MetricsLog, read_metrics
from aboard.record.node_samples import NodeSample, read_node_samples

WEEK = 7 * 86400


def make_line(step: int, **figures: float | None) -> MetricsLine:
    return MetricsLine(at=1000.0 + step, generation=1, step=step, figures=figures, seconds={"data": 0.5, "other": 0.25})


def make_window(number: int, late: dict[int, RankLateness] | None = None, **fields: Any) -> LatenessWindow:
    fields = {"count": 500, "interval": 0.02, "measured": ((0, 511),), **fields}
    return LatenessWindow(at=1000.0 + 10 * number, late=late or {}, **fields)


def read_hostile(tmp_path: Path, valid: Path) -> Path:
    """The valid file with every kind of foreign line around its own, and a torn one at the end."""
    path = tmp_path / "hostile.jsonl"
    own = valid.read_bytes()
    foreign = [b"\xff\xfe\n", b"[]\n", b"7\n", b"null\n", b"{}\n", b"[" * 100_000 + b"\n", b'{"at": 1e400}\n']
    # Each field of a valid line, replaced by each kind of JSON.
    entry = json.loads(own.splitlines()[0])
    for key in entry:
        wrong: tuple[object, ...] = (None, "x", -1, [[]], [[1, 2, 3]], {"a": []}, float("nan"), 2**70)
        foreign += [json.dumps({**entry, key: value}).encode() + b"\n" for value in wrong]
    path.write_bytes(b"".join(foreign) + b'{"at":"' + b"x" * (5 << 20) + b'"}\n' + own + own[:20])
    return path


def test_metrics_come_back_as_they_were(tmp_path: Path) -> None:
    lines = [
        make_line(10, loss=2.125, grad_norm=None, memory=2**40),
        make_line(10, eval_loss=2.5),
        MetricsLine(at=1020.5, generation=2, step=10, figures={"wall": 60.0}, seconds={"loading": 30.0}),
    ]
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for line in lines:
        log.take(line)
    log.close()
    read = read_metrics(tmp_path / "metrics.jsonl")
    assert list(read) == lines
    assert read.dropped == 0
    assert [line.kind for line in lines] == ["log", "evaluation", "end"]


def test_long_runs_keep_fewer_lines_but_all_evaluations_and_all_of_the_ledger(tmp_path: Path) -> None:
    limit, count = 100_000, 5000
    log = MetricsLog(tmp_path / "metrics.jsonl", limit)
    for step in range(count):
        log.take(make_line(step, loss=2.0))
        if step % 100 == 0:
            log.take(make_line(step, eval_loss=2.0))
    log.take(make_line(count, loss=1.0))
    log.close()
    read = read_metrics(tmp_path / "metrics.jsonl")
    lines = list(read)
    logged = [line for line in lines if line.kind == "log"]
    assert (tmp_path / "metrics.jsonl").stat().st_size <= limit
    assert sum(line.kind == "evaluation" for line in lines) == count / 100
    assert len(logged) + read.dropped == count + 1
    # Up to the last line that was written, no second is missing.
    assert sum(line.seconds["data"] or 0 for line in logged) == pytest.approx(0.5 * (logged[-1].step + 1))
    assert logged[-1].step > count - 64


def test_a_rank_that_floods_metrics_fills_no_disk(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", 20_000)
    for step in range(2000):
        log.take(make_line(step, eval_loss=1.0))
    log.close()
    assert (tmp_path / "metrics.jsonl").stat().st_size < 21_000
    assert log.past_limit > 1000
    assert len(list(read := read_metrics(tmp_path / "metrics.jsonl"))) + read.dropped == 2000


def test_node_samples_are_read_from_the_measurements(tmp_path: Path) -> None:
    log = MeasurementLog(tmp_path / "samples.jsonl")
    figures = {
        "load": 3.5,
        "memory": 0.5,
        "memory_total": 2**40,
        "received": 10,
        "sent": 20,
        "gpus": [[97, 1, 2, None, 60.5], [91, 2, 2, None, 58.5]],
    }
    log.take(NodeMeasurement(node="n1", at=1000.0, figures={"node": figures, "children": {"0": {"step": 3}}}))
    log.take(NodeMeasurement(node="n2", at=1001.0, figures={"node": {"load": 1.0}, "children": {}}))
    log.close()
    gpus: dict[str, Any] = {"gpus": 2, "gpu": 94, "gpu_memory": 0.75, "temperature": 60.5}
    first = NodeSample(at=1000.0, node="n1", load=3.5, memory=0.5, memory_total=2**40, received=10, sent=20, **gpus)
    assert list(read_node_samples(tmp_path / "samples.jsonl")) == [first, NodeSample(at=1001.0, node="n2", load=1.0)]


def test_no_name_of_a_node_is_taken_for_the_figures_of_its_ranks(tmp_path: Path) -> None:
    """These are left out before a line is decoded."""
    log, name = MeasurementLog(tmp_path / "samples.jsonl"), 'n1,"children":{'
    figures = {"node": {"load": 1.0}, "children": {"0": {"state": name}, "1": {"children": {}}}}
    log.take(NodeMeasurement(node=name, at=1.0, figures=figures))
    log.close()
    assert list(read_node_samples(tmp_path / "samples.jsonl")) == [NodeSample(at=1.0, node=name, load=1.0)]


def test_a_name_that_is_no_unicode_costs_no_sample(tmp_path: Path) -> None:
    """The record has it as a lone surrogate, which the fast decoder of JSON refuses."""
    log = MeasurementLog(tmp_path / "samples.jsonl")
    log.take(NodeMeasurement(node="n\udcff", at=1.0, figures={"node": {"load": 1.0}}))
    log.close()
    samples = read_node_samples(tmp_path / "samples.jsonl")
    assert list(samples) == [NodeSample(at=1.0, node="n\\udcff", load=1.0)]
    assert samples.dropped == 0


def test_lateness_comes_back_as_it_was(tmp_path: Path) -> None:
    late = {3: RankLateness(mean=0.0123, worst=0.4, group="0"), 7: RankLateness(mean=0.001, worst=0.002, group="tp")}
    windows = [make_window(0, late, unmeasured={"disabled": ((2, 2),)}, uncertainty=0.0015), make_window(1)]
    log = LatenessLog(tmp_path / "lateness.jsonl")
    for window in windows:
        log.take(window)
    log.close()
    read = list(read_lateness(tmp_path / "lateness.jsonl"))
    assert [each.at for each in read] == [1000.0, 1010.0]
    assert read[0].late[3].mean == pytest.approx(0.0123)
    assert read[0].late[7].worst == pytest.approx(0.002)
    assert {rank: each.group for rank, each in read[0].late.items()} == {3: "0", 7: "tp"}
    assert (read[0].unmeasured, read[0].uncertainty, read[1].late) == ({"disabled": ((2, 2),)}, 0.0015, {})


def test_windows_that_only_repeat_why_nothing_was_measured_are_written_once(tmp_path: Path) -> None:
    log = LatenessLog(tmp_path / "lateness.jsonl")
    for number in range(100):
        log.take(make_window(number, measured=(), unmeasured={"disabled": ((0, 511),)}))
    log.close()
    assert len(list(read_lateness(tmp_path / "lateness.jsonl"))) == 1


def test_a_week_of_512_late_ranks_fits_and_its_end_is_no_coarser_than_a_page_can_draw(tmp_path: Path) -> None:
    """By arithmetic: the size of a line tells how many windows each stage of coarsening holds."""
    path = tmp_path / "lateness.jsonl"
    log = LatenessLog(path)
    log.take(make_window(0, {rank: RankLateness(mean=0.0123, worst=0.4567, group="0") for rank in range(512)}))
    log.close()
    line, seconds, stage, space = path.stat().st_size, 0.0, 0, LIMIT
    while seconds < WEEK:
        space //= 2
        seconds += space / line * 10 * 4**stage
        stage += 1
    # 1,000 columns of a heat map over a week have 605 s each.
    assert space > 0
    assert 10 * 4 ** (stage - 1) <= 640


def test_merged_windows_have_the_mean_over_both_and_the_worst_of_either() -> None:
    first = make_window(0, {1: RankLateness(mean=0.04, worst=0.1, group="0")}, measured=((0, 3),))
    second = make_window(
        1, {2: RankLateness(mean=0.02, worst=0.9, group="tp")}, count=1500, interval=0.04, measured=((2, 5),)
    )
    merged = merge_windows(first, second)
    assert (merged.at, merged.seconds, merged.count, merged.interval) == (1010.0, 20.0, 2000, 0.035)
    assert merged.late[1] == RankLateness(mean=0.01, worst=0.1, group="0")
    assert merged.late[2] == RankLateness(mean=0.015, worst=0.9, group="tp")
    assert merged.measured == ((0, 5),)


def test_ranges_of_ranks_are_folded_and_expanded() -> None:
    assert fold_ranks([5, 0, 1, 2, 7]) == ((0, 2), (5, 5), (7, 7))
    assert fold_ranks([]) == ()
    assert expand_ranges(((0, 2), (5, 5))) == {0, 1, 2, 5}


@pytest.mark.parametrize("kind", ["metrics", "lateness", "samples"])
def test_torn_and_hostile_lines_are_counted_and_the_others_read(tmp_path: Path, kind: str) -> None:
    valid = tmp_path / f"{kind}.jsonl"
    log: Any
    read: Any
    if kind == "metrics":
        log, read = MetricsLog(valid), read_metrics
        log.take(make_line(1, loss=1.0))
    elif kind == "lateness":
        log, read = LatenessLog(valid), read_lateness
        log.take(make_window(0, {1: RankLateness(mean=1.0, worst=1.0, group="0")}))
    else:
        log, read = MeasurementLog(valid), read_node_samples
        log.take(
            NodeMeasurement(
                node="n1", at=1.0, figures={"node": {"load": 1.0, "gpus": [[1, 2, 3, 4, 5]]}, "children": {}}
            )
        )
    log.close()
    (wanted,) = read(valid)
    lines = read(read_hostile(tmp_path, valid))
    found = list(lines)
    assert wanted in found
    assert lines.dropped > 10


def test_lines_of_the_trainer_are_taken_as_they_come(tmp_path: Path) -> None:
    """In pieces that end anywhere, with the generation that the head knows, without what is no figure."""
    log = MetricsLog(tmp_path / "metrics.jsonl")
    first = {
        "step": 10,
        "loss": 2.5,
        "mfu": None,
        "odd": "x",
        "on": True,
        "time": 5,
        "generation": 9,
        "seconds": {"data": 1},
    }
    raw = json.dumps(first).encode() + b"\n" + b'{"step": 20, "loss": NaN}\n'
    log.feed(raw[:30], 1.0, 2)
    log.feed(raw[30:], 2.0, 2)
    log.feed(b'{"step": 30, "lo', 3.0, 2)
    # Of the next generation; and after lines that its node had no room for.
    log.feed(b'{"step": 12}\n7\n[]\n{"step": -1}\n{}\n', 4.0, 3)
    log.feed(b'{"step": 13}\n', 5.0, 3, dropped=100)
    log.close()
    lines = list(read := read_metrics(tmp_path / "metrics.jsonl"))
    assert lines[0] == MetricsLine(
        at=2.0, generation=2, step=10, figures={"loss": 2.5, "mfu": None}, seconds={"data": 1}
    )
    assert [(line.generation, line.step, dict(line.figures)) for line in lines[1:]] == [
        (2, 20, {}),
        (3, 12, {}),
        (3, 13, {}),
    ]
    assert read.dropped == 5
