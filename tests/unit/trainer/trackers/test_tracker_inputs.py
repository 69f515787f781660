"""What the head finds out for trackers, which rank gets it, and what a resumed run continues from."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from aboard.commands.train.tracker_inputs import (
    add_tracker_inputs,
    list_tracker_variables,
    list_withheld_secrets,
    read_git_state,
)
from aboard.commands.train.training_payload import build_request
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.plan.plan import MasterAddress, NodePlan, Plan
from aboard.core.plan.plan_builder import build_plan
from aboard.core.plan.training_settings import Tracker, Training
from aboard.diagnoses import Severity
from aboard.trainer.checks.training_rules import TrainingPreflight, judge_training
from aboard.trainer.trackers.send_metrics import describe_failure
from aboard.trainer.trackers.tracked_run import FACTS, Cursor, TrackedRun, choose_run_id, describe_run, flatten_metrics

SHELL = {
    "WANDB_API_KEY": "0123456789abcdef",
    "MLFLOW_TRACKING_URI": "http://me:hunter22@server:5000",
    "HOME": "/home/me",
}


def training_of(*trackers: Tracker) -> Training:
    return Training(model="/m/tiny", data=(), output_dir="/o/first", max_length=8, report_to=trackers)


def preflight_of(*trackers: Tracker, packages: tuple[str, ...] = (), **variables: str) -> TrainingPreflight:
    everything = dict.fromkeys(("torch", "transformers", "safetensors", "numpy", *packages), "1")
    return TrainingPreflight(
        training=training_of(*trackers),
        ranks={"n1": 1, "n2": 1},
        packages={"n1": everything, "n2": everything},
        tracker_variables=variables,
    )


def plan_of(typed: Mapping[str, str] | None = None, **env: str) -> Plan:
    cluster = Cluster(nodes=(Node(name="n1", env=env), Node(name="n2", env=env)))
    seats = {name: NodeResources(address=name) for name in ("n1", "n2")}
    return build_plan(
        cluster, build_request(typed or {}), seats, run="r7", master=MasterAddress(node="n1", address="n1")
    )


def test_only_rank_0_gets_credentials(tmp_path: Path) -> None:
    """Of this shell, unless the cluster has its own; an address with a password is hidden like a key."""
    preflight = preflight_of("wandb", "mlflow")
    variables = list_tracker_variables(preflight.training, plan_of(WANDB_API_KEY="theirs-instead"), SHELL, {})
    assert variables == {"WANDB_API_KEY": "theirs-instead", "MLFLOW_TRACKING_URI": SHELL["MLFLOW_TRACKING_URI"]}
    (_, first), (_, second) = add_tracker_inputs(plan_of(), preflight, variables, tmp_path).starts()
    assert {"WANDB_API_KEY", "MLFLOW_TRACKING_URI", FACTS} <= first.env.keys()
    assert {"WANDB_API_KEY", "MLFLOW_TRACKING_URI"} <= set(first.secrets)
    assert not {"WANDB_API_KEY", "MLFLOW_TRACKING_URI", FACTS} & second.env.keys()
    facts = json.loads(first.env[FACTS])
    assert (facts["run"], facts["cluster"]["ranks"], facts["versions"]["torch"], facts["git"]) == ("r7", 2, "1", {})


ADDRESS, TOKEN = {"MLFLOW_TRACKING_URI": "http://file:5000"}, {"MLFLOW_TRACKING_TOKEN": "t0ken-of-the-shell"}


@pytest.mark.parametrize(
    ("of_file", "of_shell", "typed", "withheld"),
    [
        (ADDRESS, TOKEN, {}, {"MLFLOW_TRACKING_TOKEN": ("MLFLOW_TRACKING_URI", "http://file:5000")}),
        (ADDRESS, {}, TOKEN, {"MLFLOW_TRACKING_TOKEN": ("MLFLOW_TRACKING_URI", "http://file:5000")}),
        (ADDRESS, TOKEN, ADDRESS, {}),
        (ADDRESS, TOKEN | ADDRESS, {}, {}),
        (ADDRESS | TOKEN, {}, {}, {}),
        ({"MLFLOW_EXPERIMENT_NAME": "x"}, TOKEN, {}, {}),
        ({"MLFLOW_NEW_WAY": "x"}, TOKEN, {}, {"MLFLOW_TRACKING_TOKEN": ("MLFLOW_NEW_WAY", "x")}),
        ({"DATABRICKS_HOST": "h"}, {"DATABRICKS_TOKEN": "t"}, {}, {"DATABRICKS_TOKEN": ("DATABRICKS_HOST", "h")}),
        ({"WANDB_BASE_URL": "h"}, {"WANDB_API_KEY": "t"}, {}, {"WANDB_API_KEY": ("WANDB_BASE_URL", "h")}),
        ({"SSL_CERT_FILE": "h"}, {"WANDB_API_KEY": "t"}, {}, {"WANDB_API_KEY": ("SSL_CERT_FILE", "h")}),
        ({"https_proxy": "h"}, {"WANDB_API_KEY": "t"}, {}, {}),
        ({"http_proxy": "h"}, TOKEN | ADDRESS, {}, {"MLFLOW_TRACKING_TOKEN": ("http_proxy", "h")}),
    ],
)
def test_a_file_does_not_decide_where_a_secret_of_the_user_goes(
    of_file: dict[str, str],
    of_shell: dict[str, str],
    typed: dict[str, str],
    withheld: dict[str, tuple[str, str]],
    tmp_path: Path,
) -> None:
    """No rank gets it, and the finding names the variable; with an address that the user gave, rank 0 gets it."""
    plan, training = plan_of(typed, **of_file), training_of("wandb", "mlflow")
    assert list_withheld_secrets(training, plan, of_shell, typed) == withheld
    variables = list_tracker_variables(training, plan, of_shell, withheld)
    preflight = replace(preflight_of("wandb", "mlflow"), withheld_secrets=withheld, tracker_variables=variables)
    starts = [start for _node, start in add_tracker_inputs(plan, preflight, variables, tmp_path).starts()]
    assert not any(name in start.env or name in start.secrets for start in starts for name in withheld)
    assert (of_shell | typed).keys() - withheld.keys() <= starts[0].env.keys()
    found = [finding.seen for finding in judge_training(preflight) if finding.code == "train-tracker-address"]
    assert [seen.split()[0] for seen in found] == list(withheld)


def test_the_head_and_the_trainer_agree_on_rank_0(tmp_path: Path) -> None:
    """It is the first that is started, whichever node has no ranks."""
    plan = plan_of()
    empty = NodePlan(node=plan.parts[0].node, starts=())
    shifted = replace(plan, parts=(empty, *plan.parts))
    starts = list(add_tracker_inputs(shifted, preflight_of("wandb"), {"WANDB_API_KEY": "key-of-me"}, tmp_path).starts())
    assert [FACTS in start.env for _, start in starts] == [True, False]


@pytest.mark.parametrize(
    ("trackers", "packages", "variables", "found"),
    [
        (("tensorboard",), ("tensorboard",), {}, []),
        (("tensorboard",), (), {}, [("train-tracker-package", Severity.BLOCK)]),
        (("mlflow",), ("mlflow-skinny",), {"MLFLOW_TRACKING_URI": "http://s"}, []),
        (("mlflow",), ("mlflow",), {}, [("train-tracker-server", Severity.BLOCK)]),
        (("wandb",), ("wandb",), {"WANDB_API_KEY": "k"}, []),
        (("wandb",), ("wandb",), {"WANDB_MODE": "offline"}, []),
        (("wandb",), ("wandb",), {}, [("train-tracker-server", Severity.WARN)]),
    ],
)
def test_a_tracker_that_gets_nothing_is_found_before_nodes_are_claimed(
    trackers: tuple[Tracker, ...],
    packages: tuple[str, ...],
    variables: dict[str, str],
    found: list[tuple[str, Severity]],
) -> None:
    """The package on rank 0's node only; the address of MLflow; a key for W&B, which may also be on the node."""
    preflight = preflight_of(*trackers, packages=packages, **variables)
    elsewhere = replace(preflight, packages={**preflight.packages, "n2": preflight_of().packages["n2"]})
    assert [(each.code, each.severity) for each in judge_training(elsewhere)] == found


def test_git_state_runs_no_program_of_the_repository(tmp_path: Path) -> None:
    """Commit, branch and changes; a file monitor that the repository names is not started."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=trunk"]
    (tmp_path / "a.py").write_text("1")
    for words in (["init", "-q"], ["add", "a.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run([*git, "config", "core.fsmonitor", f"touch {tmp_path}/ran"], check=True)
    assert read_git_state(tmp_path) == {"commit": commit, "branch": "trunk", "dirty": False}
    (tmp_path / "a.py").write_text("22")
    assert read_git_state(tmp_path)["dirty"] is True
    assert not (tmp_path / "ran").exists()
    subprocess.run([*git, "add", "a.py"], check=True)
    assert read_git_state(tmp_path)["dirty"] is True


@pytest.mark.parametrize("kind", ["copied", "bare"])
def test_git_state_runs_no_filter(tmp_path: Path, kind: str) -> None:
    """Neither of a repository that was copied with its settings, nor of a cloned directory that is a bare one."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "a.py").write_text("1")
    (tmp_path / ".gitattributes").write_text("* filter=evil")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    subprocess.run([*git, "config", "filter.evil.clean", f"touch {tmp_path}/ran; cat"], check=True)
    if kind == "bare":
        for path in (tmp_path / ".git").iterdir():
            path.rename(tmp_path / path.name)
        (tmp_path / ".git").rmdir()
        subprocess.run(["git", "-C", str(tmp_path), "config", "core.worktree", "."], check=True)
    (tmp_path / "a.py").write_text("2")
    state = read_git_state(tmp_path)
    assert state == {} if kind == "bare" else state["dirty"] is None
    assert not (tmp_path / "ran").exists()
    subprocess.run(["git", "-C", str(tmp_path), "status"], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "ran").exists()


def test_a_run_is_described_without_secrets() -> None:
    """Neither by shape, nor the value of a secret variable; nothing of the environment is taken."""
    training = replace(training_of("wandb"), model="hf://me:pa55word@host/hunter22-model", run_name="try hunter22")
    run = describe_run(training, "id1", {"MY_PASSWORD": "hunter22", "OTHER": "plain-value"})
    text = json.dumps([run.config, run.name])
    assert "pa55word" not in text
    assert "hunter22" not in text
    assert "plain-value" not in text
    assert (run.config["learning_rate"], run.name) == (2e-5, "try [secret]")


def test_a_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    """Of its directory, else of its checkpoint; step 0, or a checkpoint of another directory, starts a new run."""
    state = {"tracker": {"run": "moved", "output_dir": str(tmp_path)}}
    assert choose_run_id(tmp_path, 5, state) == "moved"
    other = choose_run_id(tmp_path, 5, {"tracker": {"run": "moved", "output_dir": "/elsewhere"}})
    assert other not in ("moved", choose_run_id(tmp_path, 5, {}))
    run = TrackedRun(id="own", name="n", project=None, model="m", config={})
    run.save(tmp_path)
    assert choose_run_id(tmp_path, 5, state) == "own"
    assert choose_run_id(tmp_path, 0, state) not in ("own", "moved")


def test_lines_that_a_resume_removed_are_sent_again(tmp_path: Path) -> None:
    """And only those; what the sender has not yet taken into account is kept for the next one."""
    sent = Cursor(run="r", lines=10, rows=10)
    assert sent.truncate(20, 20).settle().lines == 10
    assert sent.truncate(7, 7).settle().lines == 7
    assert sent.truncate(7, 7).truncate(9, 9).settle().lines == 7
    (tmp_path / "trackers").mkdir()
    saved = sent.truncate(7, 7).save(tmp_path, "mlflow")
    assert Cursor.load(tmp_path, "mlflow", "r") == saved
    assert Cursor.load(tmp_path, "mlflow", "another") == Cursor(run="another")


def test_names_of_metrics() -> None:
    """Numbers only; the ledger of a line and of the whole run are apart."""
    line = {"step": 1, "steps": 2, "time": 9.0, "loss": None, "mfu": 0.5, "seconds": {"data": 1.0, "other": None}}
    assert flatten_metrics(line) == {"train/mfu": 0.5, "ledger/data": 1.0}
    assert flatten_metrics({"step": 2, "eval_loss": 2}) == {"eval/loss": 2.0}
    end = {"step": 2, "wall": 3.0, "seconds": {"data": 1.0}}
    assert flatten_metrics(end) == {"ledger_total/wall": 3.0, "ledger_total/data": 1.0}


@pytest.mark.parametrize(
    ("tracker", "text", "fix"),
    [
        (
            "mlflow",
            "API request failed with error code 401 != 200",
            "export MLFLOW_TRACKING_TOKEN=",
        ),
        ("wandb", "api_key not configured (no-tty)", "export WANDB_API_KEY="),
        ("mlflow", "Failed to resolve 'nope.invalid' ([Errno -2] Name or service", "host name in MLFLOW_TRACKING_URI"),
        ("mlflow", "Read timed out. (read timeout=10) http://me:hunter22@server", "nothing needs to be done"),
    ],
)
def test_a_failure_is_named_with_its_fix(tracker: str, text: str, fix: str) -> None:
    """By the words of the tracker's client, without a password."""
    said = describe_failure(tracker, RuntimeError(text))
    assert fix in said
    assert "hunter22" not in said
