"""The trackers' own libraries, each behind the same three calls; only the sender's process imports them."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from aboard.trainer.trackers.tracked_run import Cursor, TrackedRun, flatten_metrics

# Of one request; the sender repeats those that fail.
REQUEST_SECONDS = 10
_MLFLOW_PARAMS, _MLFLOW_METRICS, _MLFLOW_CHARACTERS = 100, 1000, 6000


class TrackerClient(Protocol):
    """Each call may fail or hang; `send` returns the cursor up to which the tracker certainly has the lines."""

    def open(self, run: TrackedRun, cursor: Cursor) -> Cursor: ...

    def send(self, lines: Sequence[Mapping[str, Any]], cursor: Cursor) -> Cursor: ...

    def close(self, *, succeeded: bool) -> str | None:
        """Waits until all is delivered; returns what the user should know."""
        ...


class WandbClient:
    """Each line is a row, and `_step` is its number: what the server counts shows which lines it has.

    W&B ignores rows with a smaller `_step`, so the training's step is a metric, and the x-axis of all others.
    """

    def __init__(self, output_dir: Path) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        with chdir("/"):
            import wandb  # noqa: PLC0415 - only in the process that sends to it

        self._wandb = wandb
        self._folder = output_dir.absolute()
        self._run: Any = None
        self._rows = 0

    def open(self, run: TrackedRun, cursor: Cursor) -> Cursor:
        project = run.default_project(os.environ.get("WANDB_PROJECT"))
        base = os.environ.get("WANDB_BASE_URL", "")
        cursor, fresh = _choose_target(cursor, base, os.environ.get("WANDB_ENTITY", ""), project)
        if self._run is not None:
            # W&B's own process failed: without this, `init` would wait for it.
            with suppress(Exception):
                self._wandb.teardown(exit_code=1)
        # W&B reads wandb/settings in the working directory, which may name another server for the user's key.
        with chdir("/"):
            # The run's own figures are sent, and nothing about the machine, its packages or its environment.
            settings = self._wandb.Settings(
                console="off", disable_git=True, disable_code=True, x_disable_stats=True, x_disable_meta=True,
                x_save_requirements=False, x_disable_machine_info=True, init_timeout=60,
            )  # fmt: skip
            self._run = self._wandb.init(
                project=_clean_project(project), name=run.name, id=run.id, resume="allow", dir=str(self._folder),
                config=dict(run.config), allow_val_change=True, settings=settings,
            )  # fmt: skip
        self._run.config.update(dict(run.config), allow_val_change=True)
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        if not self._run.offline:
            there = int(self._run.starting_step)
            cursor = replace(cursor, rows=there, lines=cursor.lines + (0 if fresh else there - cursor.rows))
        self._rows = cursor.rows
        return cursor.settle()

    def send(self, lines: Sequence[Mapping[str, Any]], cursor: Cursor) -> Cursor:
        for line in lines:
            row = {**flatten_metrics(line), "step": line["step"], "_timestamp": line.get("time", time.time())}
            self._run.log(row, step=self._rows)
            self._rows += 1
        # Online, W&B's own process uploads later: only the server's count at the next start, or `close`, proves it.
        return advance_cursor(cursor, lines) if self._run.offline else cursor

    def close(self, *, succeeded: bool) -> str | None:
        self._run.finish(exit_code=0 if succeeded else 1)
        if not self._run.offline:
            return None
        folders = sorted((self._folder / "wandb").glob(f"offline-run-*-{self._run.id}"))
        return "W&B is offline; to upload the run: wandb sync " + " ".join(map(str, folders))


class MlflowClient:
    """Each line is a batch of metrics with the time it was measured, so that MLflow recognizes a repeated request."""

    def __init__(self, output_dir: Path) -> None:
        # The sender repeats failed requests itself; mlflow would do it for minutes, in silence.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(REQUEST_SECONDS))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        import mlflow.entities  # noqa: PLC0415 - only in the process that sends to it

        self._mlflow: Any = mlflow
        self._client: Any = None
        self._run = ""

    def open(self, run: TrackedRun, cursor: Cursor) -> Cursor:
        uri = os.environ["MLFLOW_TRACKING_URI"]
        project = run.default_project(os.environ.get("MLFLOW_EXPERIMENT_NAME"))
        cursor, _ = _choose_target(cursor, uri, project)
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        found = cursor.remote or self._find_or_create(run, project)
        known = self._client.get_run(found)
        entities = self._mlflow.entities
        flat = {name: str(value)[:_MLFLOW_CHARACTERS] for name, value in _flatten_config(run.config).items()}
        # A parameter of MLflow can't change; what a resume changed is a tag.
        new = [entities.Param(name, value) for name, value in flat.items() if name not in known.data.params]
        changed = [
            entities.RunTag(f"aboard.changed.{name}", value)
            for name, value in flat.items()
            if known.data.params.get(name, value) != value
        ]
        for start in range(0, len(new), _MLFLOW_PARAMS):
            self._client.log_batch(found, params=new[start : start + _MLFLOW_PARAMS])
        if changed:
            self._client.log_batch(found, tags=changed[:_MLFLOW_PARAMS])
        if known.info.status != "RUNNING":
            self._client.set_terminated(found, status="RUNNING")
        self._run = found
        return replace(cursor, remote=found).settle()

    def send(self, lines: Sequence[Mapping[str, Any]], cursor: Cursor) -> Cursor:
        metrics = [
            self._mlflow.entities.Metric(name, value, int(line.get("time", 0) * 1000), line["step"])
            for line in lines
            for name, value in flatten_metrics(line).items()
        ]
        for start in range(0, len(metrics), _MLFLOW_METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + _MLFLOW_METRICS])
        return advance_cursor(cursor, lines)

    def close(self, *, succeeded: bool) -> str | None:
        self._client.set_terminated(self._run, status="FINISHED" if succeeded else "FAILED")
        return None

    def _find_or_create(self, run: TrackedRun, project: str) -> str:
        """By a tag of our own: the answer to an earlier request may have been lost."""
        experiment = self._client.get_experiment_by_name(project)
        if experiment is None:
            with suppress(self._mlflow.exceptions.MlflowException):
                self._client.create_experiment(project)
            experiment = self._client.get_experiment_by_name(project)
        there = self._client.search_runs([experiment.experiment_id], f"tags.`aboard.run` = '{run.id}'", max_results=1)
        made = there[0] if there else None
        if made is None:
            made = self._client.create_run(experiment.experiment_id, run_name=run.name, tags={"aboard.run": run.id})
        return str(made.info.run_id)


class TensorBoardClient:
    """Event files below `output_dir`; the earlier events of repeated steps are marked, and TensorBoard drops them."""

    def __init__(self, output_dir: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: PLC0415 - only in this process
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415 - as above

        self._event, self._summary, self._open = event_pb2, summary_pb2, EventFileWriter
        self._folder = output_dir / "tensorboard"
        self._writer: Any = None

    def open(self, run: TrackedRun, cursor: Cursor) -> Cursor:
        self._writer = self._open(str(self._folder))
        if cursor.kept is not None:
            log = self._event.SessionLog
            started = log(status=log.START)
            self._writer.add_event(
                self._event.Event(step=cursor.kept_step + 1, session_log=started, wall_time=time.time())
            )
        text = "\n".join(f"    {name}: {value}" for name, value in _flatten_config(run.config).items())
        self._add(0, time.time(), self._make_text("config", text))
        return cursor.settle()

    def send(self, lines: Sequence[Mapping[str, Any]], cursor: Cursor) -> Cursor:
        for line in lines:
            values = [
                self._summary.Summary.Value(tag=name, simple_value=value)
                for name, value in flatten_metrics(line).items()
            ]
            self._add(line["step"], line.get("time", time.time()), *values)
        self._writer.flush()
        return advance_cursor(cursor, lines)

    def close(self, *, succeeded: bool) -> str | None:
        self._writer.close()
        return None

    def _add(self, step: int, at: float, *values: Any) -> None:
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event.Event(step=step, wall_time=at, summary=summary))

    def _make_text(self, tag: str, text: str) -> Any:
        from tensorboard.compat.proto import tensor_pb2, types_pb2  # noqa: PLC0415 - only in this process

        metadata = self._summary.SummaryMetadata(
            plugin_data=self._summary.SummaryMetadata.PluginData(plugin_name="text")
        )
        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode()])
        return self._summary.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)


CLIENTS: Mapping[str, Any] = {"wandb": WandbClient, "mlflow": MlflowClient, "tensorboard": TensorBoardClient}


def advance_cursor(cursor: Cursor, lines: Sequence[Any]) -> Cursor:
    return replace(cursor, lines=cursor.lines + len(lines), rows=cursor.rows + len(lines))


def _choose_target(cursor: Cursor, *parts: str) -> tuple[Cursor, bool]:
    """Whether it is another server or project than before, which gets all lines; an address may have a password."""
    target = sha256("|".join(parts).encode()).hexdigest()[:16]
    if cursor.target == target:
        return cursor, False
    return Cursor(run=cursor.run, target=target), True


def _clean_project(name: str) -> str:
    return "".join("-" if char in "/\\#?%:" else char for char in name)[:128]


def _flatten_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _flatten_config(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found
