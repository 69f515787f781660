"""What rank 0 gets for the trackers of a training: their variables of this shell, and facts for their pages."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aboard
from aboard.checks.train.training_rules import TrainingPreflight
from aboard.core.plan.plan import NodePlan, Plan
from aboard.core.plan.training_settings import Training
from aboard.core.secrets.secret_names import list_secret_names

# Read by the trainer: train/trackers/tracked_run.py.
FACTS = "ABOARD_TRACKER_FACTS"
VARIABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "wandb": (
            "WANDB_API_KEY",
            "WANDB_BASE_URL",
            "WANDB_ENTITY",
            "WANDB_MODE",
            "WANDB_NOTES",
            "WANDB_PROJECT",
            "WANDB_RUN_GROUP",
            "WANDB_TAGS",
        ),
        "mlflow": (
            "DATABRICKS_HOST",
            "DATABRICKS_TOKEN",
            "MLFLOW_ALLOW_FILE_STORE",
            "MLFLOW_EXPERIMENT_NAME",
            "MLFLOW_TRACKING_INSECURE_TLS",
            "MLFLOW_TRACKING_PASSWORD",
            "MLFLOW_TRACKING_TOKEN",
            "MLFLOW_TRACKING_URI",
            "MLFLOW_TRACKING_USERNAME",
        ),
        "tensorboard": (),
    }
)
_GIT_SECONDS = 2.0
_VERSIONS = ("torch", "cuda", "nccl", "transformers")


def list_tracker_variables(training: Training, plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """The trackers' variables that rank 0 will have: the plan's own come before those of this shell."""
    names = [name for tracker in training.report_to for name in VARIABLES[tracker]]
    rank_0 = next(start for _node, start in plan.starts())
    return {name: value for name in names if (value := rank_0.env.get(name, environ.get(name))) is not None}


def add_tracker_inputs(plan: Plan, preflight: TrainingPreflight, variables: Mapping[str, str], here: Path) -> Plan:
    """The plan whose rank 0 alone has credentials and facts; values of secrets appear in no output."""
    if not preflight.training.report_to:
        return plan
    first = next(index for index, part in enumerate(plan.parts) if part.starts)
    rank_0, *others = plan.parts[first].starts
    facts = json.dumps(collect_tracker_facts(plan, preflight, here))
    # An address may have a user and a password in it.
    hidden = [name for name, value in variables.items() if "@" in value]
    secrets = tuple(dict.fromkeys([*rank_0.secrets, *list_secret_names(variables), *hidden]))
    rank_0 = replace(rank_0, env={**rank_0.env, **variables, FACTS: facts}, secrets=secrets)
    parts = list(plan.parts)
    parts[first] = NodePlan(node=plan.parts[first].node, starts=(rank_0, *others))
    return replace(plan, parts=tuple(parts))


def collect_tracker_facts(plan: Plan, preflight: TrainingPreflight, here: Path) -> dict[str, Any]:
    """The cluster, the versions on rank 0's node, and the state of the user's code."""
    packages = preflight.packages.get(preflight.nodes[0], {})
    cluster = {
        "nodes": len(preflight.nodes),
        "ranks": preflight.world,
        "gpus": sum(len(preflight.cards.get(name, ())) for name in preflight.nodes),
        "names": ",".join(preflight.nodes[:64]),
    }
    versions = {"aboard": aboard.__version__} | {name: packages[name] for name in _VERSIONS if name in packages}
    return {"run": plan.run, "cluster": cluster, "versions": versions, "git": read_git_state(here)}


def read_git_state(here: Path) -> dict[str, Any]:
    """Commit, branch and whether files differ from it; empty outside of a repository. Runs no hook, writes nothing."""
    commit, branch = _ask_git(here, "rev-parse", "HEAD"), _ask_git(here, "rev-parse", "--abbrev-ref", "HEAD")
    if commit is None:
        return {}
    changes = _ask_git(here, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    return {"commit": commit, "branch": branch, "dirty": None if changes is None else bool(changes)}


def _ask_git(here: Path, *words: str) -> str | None:
    # A repository's own settings may name programs that `status` would run.
    argv = ["git", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-C", str(here), *words]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
