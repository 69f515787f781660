"""The figures of a run in Prometheus' text format."""

from made_events import made_event

from aboard.core.monitoring.prometheus_text import RunFigures, format_last_metrics, format_live_metrics
from aboard.core.run.events import Measurement
from aboard.core.run.run_state import Run


def build_run() -> Run:
    run = Run(id="otter")
    run.apply(made_event("generation", node="", at=1000.0, number=3))
    for child in ("0", "1", "2"):
        run.apply(made_event("started", node="n1", at=1001.0, child=child))
    run.apply(made_event("exited", node="n1", at=1002.0, child="1", code=0))
    run.apply(made_event("exited", node="n1", at=1002.0, child="2", code=1))
    run.take(Measurement(node="n1", at=1003.0, child="0", values={"step": 1200}, metrics={"loss": float("nan")}))
    return run


FIGURES = RunFigures(
    program='a "b"\\c\nd.py', world=8, now=1010.5, progressed=1003.0, verdicts={"gpu-xid": 2}, standing="hang-mismatch"
)
LIVE = r"""# HELP aboard_run_info What runs.
# TYPE aboard_run_info gauge
aboard_run_info{run="otter",program="a \"b\"\\c\\nd.py"} 1
# HELP aboard_run_start_timestamp_seconds When the first attempt started.
# TYPE aboard_run_start_timestamp_seconds gauge
aboard_run_start_timestamp_seconds{run="otter"} 1000
# HELP aboard_updated_timestamp_seconds When the conductor last wrote these figures.
# TYPE aboard_updated_timestamp_seconds gauge
aboard_updated_timestamp_seconds{run="otter"} 1010.5
# HELP aboard_attempt The number of the attempt that runs now.
# TYPE aboard_attempt gauge
aboard_attempt{run="otter"} 3
# HELP aboard_step The step that all ranks have reached.
# TYPE aboard_step gauge
aboard_step{run="otter"} 1200
# HELP aboard_last_progress_timestamp_seconds When a rank last made a step or phase.
# TYPE aboard_last_progress_timestamp_seconds gauge
aboard_last_progress_timestamp_seconds{run="otter"} 1003
# HELP aboard_loss The last loss that the trainer logged.
# TYPE aboard_loss gauge
aboard_loss{run="otter"} NaN
# HELP aboard_ranks Ranks by state.
# TYPE aboard_ranks gauge
aboard_ranks{run="otter",state="running"} 1
aboard_ranks{run="otter",state="finished"} 1
aboard_ranks{run="otter",state="failed"} 1
aboard_ranks{run="otter",state="waiting"} 5
# HELP aboard_standing_verdict 1 while ranks are stuck or slow.
# TYPE aboard_standing_verdict gauge
aboard_standing_verdict{run="otter",code="hang-mismatch"} 1
# HELP aboard_restarts_total Attempts after the first one.
# TYPE aboard_restarts_total counter
aboard_restarts_total{run="otter"} 2
# HELP aboard_verdicts_total Verdicts by code: see aboard why CODE.
# TYPE aboard_verdicts_total counter
aboard_verdicts_total{run="otter",code="gpu-xid"} 2
"""


def test_the_figures_of_a_run_that_goes_on() -> None:
    """Labels are escaped, no line has a timestamp, and what is unknown is left out."""
    assert format_live_metrics(build_run(), FIGURES) == LIVE


def test_what_remains_of_a_run_that_has_ended() -> None:
    """No time of a step or checkpoint, from which an alert would conclude that it hangs."""
    text = format_last_metrics(build_run(), FIGURES, 1)
    names = [line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")]
    assert names == [
        "aboard_run_info",
        "aboard_run_end_timestamp_seconds",
        "aboard_run_exit_code",
        "aboard_restarts_total",
        "aboard_verdicts_total",
    ]
