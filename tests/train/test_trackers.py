"""Trackers get every line of metrics.jsonl, and no training waits for them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from deadlines import slowness
from mlflow_server import hang_silently, serve_mlflow
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_cases import curve, lines, trained
from train_crew import Crew, free_port
from wandb.proto import wandb_internal_pb2

from aboard.core.plan.training_settings import Training
from aboard.trainer.metrics.metrics_report import MetricsReporter
from aboard.trainer.trackers import sender_process

SECRET = "not-to-be-seen-anywhere"  # noqa: S105 - what is looked for
PATIENCE = 60.0 * slowness()
LOGGED: dict[str, Any] = {
    "learning_rate": 1.0,
    "grad_norm": 1.0,
    "tokens_per_second": 1.0,
    "mfu": None,
    "eta": 1.0,
    "seconds": {"data": 0.5, "communication": None},
}


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Reports steps as a run does that continues after `first`."""
    request.getfixturevalue("capfd")

    def run(first: int, last: int, *trackers: str, seconds: list[float] | None = None, **changed: Any) -> None:
        usual: dict[str, Any] = {"model": "/m/tiny", "data": (), "output_dir": str(tmp_path), "max_length": 8}
        with MetricsReporter(Training(**{**usual, "report_to": trackers, **changed}), main=True) as reporter:
            reporter.begin(first)
            for step in range(first + 1, last + 1):
                began = time.perf_counter()
                reporter.line({"step": step, "steps": last, "loss": 1 / step, **LOGGED})
                if seconds is not None:
                    seconds.append(time.perf_counter() - began)
            reporter.line({"step": last, "steps": last, "eval_loss": 0.25})
            reporter.line({"step": last, "steps": last, "wall": 2.0, "seconds": {"data": 2.0}})

    monkeypatch.setenv("MY_TOKEN", SECRET)
    # MLflow's client takes long to import on a busy machine.
    monkeypatch.setattr(sender_process, "START_SECONDS", 2 * PATIENCE)
    return run


def rows(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The history in W&B's own file."""
    (path,) = folder.glob("*.wandb")
    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {"/".join(each.nested_key) or each.key: json.loads(each.value_json) for each in items}
            yield record.history.step.num, row


def _records(data: bytes) -> Iterator[bytes]:
    """The format of LevelDB's log: blocks of 32 KiB with parts of records, after a header."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield whole
            whole = b""


def resend(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aboard.trainer.trackers", str(folder)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=2 * PATIENCE)


def test_wandb_offline_has_the_curve(settled: Callable[..., Training], crew: Crew) -> None:
    """The library's own file has each loss and the settings, a resume continues the curve, and no secret is written."""
    training = settled(max_steps=3, report_to=("wandb",), project="p", run_name="n")
    crew.run(1, offline, training)
    resumed = settled(max_steps=5, report_to=("wandb",), project="p", run_name="n")
    crew.run(1, offline, resumed)
    folders = sorted((Path(training.output_dir) / "wandb").glob("offline-run-*"), key=lambda each: each.stat().st_mtime)
    found = [row for folder in folders for row in rows(folder)]
    assert [number for number, _ in found] == list(range(len(lines(resumed))))
    losses = [(row["step"], row["train/loss"]) for _, row in found if "train/loss" in row]
    assert losses == [(step, loss) for step, (loss, _) in enumerate(curve(resumed), 1)]
    assert len({folder.name.rpartition("-")[2] for folder in folders}) == 1
    written = [path.read_bytes() for path in Path(training.output_dir).rglob("*") if path.is_file()]
    assert any(b"learning_rate" in each for each in written)
    assert not any(SECRET.encode() in each for each in written)


def offline(training: Training) -> str:
    os.environ |= {"WANDB_MODE": "offline", "WANDB_API_KEY": SECRET}
    return trained(training)


def test_tensorboard_has_each_step_once(report: Callable[..., None], tmp_path: Path) -> None:
    """Steps that a resume repeats replace those before."""
    report(0, 5, "tensorboard")
    report(3, 6, "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [each.step for each in events.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    assert [each.step for each in events.Scalars("ledger/data")] == [1, 2, 3, 4, 5, 6]
    assert [each.value for each in events.Scalars("ledger_total/wall")] == [2.0]


def test_a_tracker_that_hangs_costs_nothing_and_loses_nothing(
    report: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A log line takes as long as without it, the run ends, and the command that it names sends all."""
    monkeypatch.setattr(sender_process, "FLUSH_SECONDS", 0.2)
    plain: list[float] = []
    report(0, 200, seconds=plain, output_dir=str(tmp_path / "plain"))
    tracked: list[float] = []
    with hang_silently() as listener:
        port = listener.getsockname()[1]
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        report(0, 200, "mlflow", seconds=tracked)
    assert median(tracked) < 3 * median(plain) + 1e-3
    output = capfd.readouterr().out
    assert "mlflow has not confirmed 202 lines" in output
    assert f"python3 -m aboard.trainer.trackers {tmp_path}" in output
    with serve_mlflow(port) as server:
        sent = resend(tmp_path)
        assert (sent.returncode, sent.stdout.splitlines()[-1]) == (0, "mlflow: sent 202 lines")
        assert server.steps_of("train/loss") == list(range(1, 201))
        assert server.steps_of("eval/loss") == [200]
        assert server.params["learning_rate"] == "2e-05"
        assert server.run is not None
        assert (server.experiment, server.run["info"]["status"]) == ("tiny", "FINISHED")
        monkeypatch.setattr(sender_process, "FLUSH_SECONDS", PATIENCE)
        report(200, 202, "mlflow")
        assert server.steps_of("train/loss") == list(range(1, 203))
    assert "every tracker of this directory has all lines" in resend(tmp_path).stdout


RANK = """
import os, sys
from pathlib import Path
from aboard.core.plan.training_settings import Training
from aboard.trainer.trackers.sender_process import TrackerSenders
from aboard.trainer.trackers.tracked_run import describe_run
folder = Path(sys.argv[1])
describe_run(Training(model="m", data=(), output_dir=str(folder), max_length=8), "r1", os.environ).save(folder)
senders = TrackerSenders(folder, [sys.argv[2]])
sys.stdin.read()
"""


def test_no_sender_outlives_its_rank(tmp_path: Path) -> None:
    """Not even one that hangs in the tracker's library, when its rank is killed."""
    with hang_silently() as listener:
        env = {**os.environ, "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{listener.getsockname()[1]}"}
        command = [sys.executable, "-c", RANK, str(tmp_path), "mlflow"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=env) as rank:
            listener.settimeout(PATIENCE)
            connection, _ = listener.accept()
            rank.kill()
        connection.settimeout(PATIENCE)
        while connection.recv(4096):
            pass
        connection.close()


@pytest.mark.nightly
def test_no_process_of_wandb_outlives_its_rank(tmp_path: Path) -> None:
    """W&B starts a process of its own, in another session."""
    env = {**os.environ, "WANDB_MODE": "offline", "MARK": str(tmp_path)}
    read, write = os.pipe()
    command = [sys.executable, "-c", RANK, str(tmp_path), "wandb"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=env, pass_fds=[write]) as rank:
        deadline = time.monotonic() + PATIENCE
        while not list((tmp_path / "wandb").glob("offline-run-*/*.wandb")):
            assert time.monotonic() < deadline
        rank.send_signal(signal.SIGKILL)
    os.close(write)
    deadline = time.monotonic() + PATIENCE
    while _marked(str(tmp_path)):
        assert time.monotonic() < deadline, _marked(str(tmp_path))
    os.close(read)


def _marked(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.nightly
def test_a_real_mlflow_server_loses_nothing_when_it_restarts(
    report: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before a resumed run and started before the next: one curve with every step."""
    venv, port = tmp_path / "venv", free_port()
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([str(venv / "bin/pip"), "install", "-q", "mlflow"], check=True)
    uri = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with MlflowProcess(venv, tmp_path, port):
        report(0, 5, "mlflow")
    monkeypatch.setattr(sender_process, "FLUSH_SECONDS", 1.0)
    report(3, 8, "mlflow")
    with MlflowProcess(venv, tmp_path, port):
        monkeypatch.setattr(sender_process, "FLUSH_SECONDS", PATIENCE)
        report(8, 10, "mlflow")
        from mlflow import MlflowClient  # noqa: PLC0415 - takes seconds to import

        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("tiny")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        history = client.get_metric_history(run.info.run_id, "train/loss")
        assert [each.step for each in history] == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 10]
        assert (run.info.status, run.data.params["max_length"]) == ("FINISHED", "8")


class MlflowProcess:
    def __init__(self, venv: Path, folder: Path, port: int) -> None:
        self._argv = [str(venv / "bin/mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        self._argv += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
        self._port = port

    def __enter__(self) -> None:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(self._argv, env=env, start_new_session=True, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 2 * PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                assert time.monotonic() < deadline
            else:
                return

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(PATIENCE)
