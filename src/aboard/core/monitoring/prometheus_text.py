"""The figures of a run in Prometheus' text format, without timestamps: the collector adds them."""

from collections.abc import Iterable, Mapping
from math import isnan

from aboard.core.run.run_state import Run
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass

Sample = tuple[Mapping[str, str], float | None]


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """What is known of a run beside its state: Unix times (None where unknown), and verdicts by code.

    `standing` is the code of the verdict on a run that is stuck or slow now.
    """

    program: str
    world: int
    now: float
    progressed: float | None = None
    saved: float | None = None
    verdicts: Mapping[str, int]
    standing: str = ""


def format_live_metrics(run: Run, figures: RunFigures) -> str:
    """All figures of a run that goes on; what is unknown is left out, never 0."""
    now, metrics = run.generation, run.metrics
    failed = now.dead
    finished = now.exited - sum(child.state == "exited" for child in failed)
    states = {"running": now.running, "finished": finished, "failed": len(failed)}
    states["waiting"] = max(0, figures.world - sum(states.values()))
    own = {"run": run.id}
    goodput = run.ledger.compute_goodput(run.step, figures.now)
    gauges: dict[str, tuple[str, float | None]] = {
        "aboard_run_start_timestamp_seconds": ("When the first attempt started.", run.began or None),
        "aboard_updated_timestamp_seconds": ("When the conductor last wrote these figures.", figures.now),
        "aboard_attempt": ("The number of the attempt that runs now.", now.number),
        "aboard_step": ("The step that all ranks have reached.", run.step),
        "aboard_last_progress_timestamp_seconds": ("When a rank last made a step or phase.", figures.progressed),
        "aboard_loss": ("The last loss that the trainer logged.", metrics.get("loss")),
        "aboard_tokens_per_second": ("The last rate that the trainer logged.", metrics.get("tokens_per_second")),
        "aboard_goodput_ratio": ("The share of the time that new steps needed.", goodput),
        "aboard_checkpoint_timestamp_seconds": ("When this run completed its newest checkpoint.", figures.saved),
    }
    ranks = [({**own, "state": name}, count) for name, count in states.items()]
    standing = [({**own, "code": figures.standing}, 1)] if figures.standing else []
    return "".join((
        _format_info(run, figures),
        *(_format_family(name, "gauge", text, [(own, value)]) for name, (text, value) in gauges.items()),
        _format_family("aboard_ranks", "gauge", "Ranks by state.", ranks),
        _format_family("aboard_standing_verdict", "gauge", "1 while ranks are stuck or slow.", standing),
        *_format_counters(run, figures),
    ))  # fmt: skip


def format_last_metrics(run: Run, figures: RunFigures, exit_code: int) -> str:
    """What remains of a run that has ended: nothing that an alert could take for a run that hangs."""
    own = {"run": run.id}
    ended = _format_family("aboard_run_end_timestamp_seconds", "gauge", "When the run ended.", [(own, figures.now)])
    code = _format_family("aboard_run_exit_code", "gauge", "The exit code; 130 if it was stopped.", [(own, exit_code)])
    return "".join((_format_info(run, figures), ended, code, *_format_counters(run, figures)))


def _format_info(run: Run, figures: RunFigures) -> str:
    labels = {"run": run.id, "program": figures.program}
    return _format_family("aboard_run_info", "gauge", "What runs.", [(labels, 1)])


def _format_counters(run: Run, figures: RunFigures) -> Iterable[str]:
    own = {"run": run.id}
    restarts = max(0, run.generation.number - 1)
    yield _format_family("aboard_restarts_total", "counter", "Attempts after the first one.", [(own, restarts)])
    verdicts = [({**own, "code": code}, count) for code, count in sorted(figures.verdicts.items())]
    yield _format_family("aboard_verdicts_total", "counter", "Verdicts by code: see aboard why CODE.", verdicts)


def _format_family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return ""
    lines = [f"{name}{{{_format_labels(labels)}}} {_format_value(value)}\n" for labels, value in known]
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{''.join(lines)}"


def _format_labels(labels: Mapping[str, str]) -> str:
    """Names come from us; a value may be any text, such as a program's path."""
    escaped = (
        (name, escape_text(value, 200).replace("\\", "\\\\").replace('"', '\\"')) for name, value in labels.items()
    )
    return ",".join(f'{name}="{value}"' for name, value in escaped)


def _format_value(value: float) -> str:
    return "NaN" if isnan(value) else f"{value:.15g}"
