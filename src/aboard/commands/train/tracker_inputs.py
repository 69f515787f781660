"""What rank 0 gets for the trackers of a training run: their variables of this shell, and facts for their pages."""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aboard
from aboard.core.plan.plan import NodePlan, Plan, Start
from aboard.core.plan.training_settings import Training
from aboard.core.secrets.secret_names import list_secret_names
from aboard.foreign_files import open_foreign_file
from aboard.trainer.checks.training_rules import TrainingPreflight
from aboard.trainer.trackers.tracked_run import FACTS

# The variables of each library with which rank 0 logs in, with which it finds the server, and all others that it needs.
# Whoever sets one of the second kind, or one that is not listed, may decide where a secret is sent.
_SECRETS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "wandb": ("WANDB_API_KEY",),
    "mlflow": (
        "DATABRICKS_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME",
    ),
})  # fmt: skip
_ADDRESSES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "wandb": ("WANDB_BASE_URL",),
    "mlflow": ("DATABRICKS_HOST", "MLFLOW_TRACKING_INSECURE_TLS", "MLFLOW_TRACKING_URI"),
})  # fmt: skip
_SETTINGS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "wandb": ("WANDB_ENTITY", "WANDB_MODE", "WANDB_NOTES", "WANDB_PROJECT", "WANDB_RUN_GROUP", "WANDB_TAGS"),
    "mlflow": ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_EXPERIMENT_NAME"),
})  # fmt: skip
# Not brought to rank 0, but harmless.
_HARMLESS = frozenset({
    "WANDB_SILENT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT",
    *(name for names in (*_SECRETS.values(), *_SETTINGS.values()) for name in names),
})  # fmt: skip
# Whoever decides which certificates are valid can answer for every server; a proxy reads what is not encrypted.
_CERTIFICATES = frozenset({"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"})
_PROXIES = frozenset({"ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY"})
_GIT_SECONDS = 2.0
_GIT_MEMORY = 512 * 1024 * 1024
_MOST_HASHED = 64 * 1024 * 1024
_SUBMODULE, _SHA1_DIGITS = "160000", 40
_CONVERSIONS = (b"filter", b"text", b"eol", b"crlf", b"ident", b"encoding")
_VERSIONS = ("torch", "cuda", "nccl", "transformers")


def list_tracker_variables(
    training: Training, plan: Plan, environ: Mapping[str, str], withheld: Mapping[str, tuple[str, str]]
) -> dict[str, str]:
    """The trackers' variables that rank 0 will have: the plan's own come before those of this shell."""
    names = [name for tracker in training.report_to for name in _list_variables(tracker) if name not in withheld]
    rank_0 = next(start for _node, start in plan.starts())
    return {name: value for name in names if (value := rank_0.env.get(name, environ.get(name))) is not None}


def list_withheld_secrets(
    training: Training, plan: Plan, environ: Mapping[str, str], typed: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """The secrets of this shell or command that a file would send elsewhere, with the file's variable and its value."""
    node = next(part.node for part in plan.parts if part.starts)
    of_files = {**node.env, **({} if node.container is None else node.container.env)}
    of_user = {**environ, **typed}
    foreign = {name: value for name, value in of_files.items() if name not in typed and environ.get(name) != value}
    found = {}
    for tracker in training.report_to:
        plain = any(of_user.get(name, "").startswith("http:") for name in _list_variables(tracker))
        for name in {*_SECRETS.get(tracker, ())} & of_user.keys() - foreign.keys():
            # The library reads its other settings from variables with the same prefix.
            prefix = name.partition("_")[0] + "_"
            ways = [other for other in foreign if _decides_receiver(other, prefix, plain=plain)]
            if ways:
                found[name] = (ways[0], foreign[ways[0]])
    return found


def _list_variables(tracker: str) -> list[str]:
    return sorted(name for kind in (_SECRETS, _ADDRESSES, _SETTINGS) for name in kind.get(tracker, ()))


def _decides_receiver(name: str, prefix: str, *, plain: bool) -> bool:
    upper = name.upper()
    decides = upper.startswith(prefix) or upper in _CERTIFICATES or (plain and upper in _PROXIES)
    return decides and name not in _HARMLESS


def add_tracker_inputs(plan: Plan, preflight: TrainingPreflight, variables: Mapping[str, str], here: Path) -> Plan:
    """The plan whose rank 0 alone has credentials and facts; values of secrets appear in no output."""
    if not preflight.training.report_to:
        return plan
    plan = _remove_variables(plan, preflight.withheld_secrets)
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


def _remove_variables(plan: Plan, names: Collection[str]) -> Plan:
    """The plan without variables that `--env` named."""

    def remove(start: Start) -> Start:
        env = {name: value for name, value in start.env.items() if name not in names}
        return replace(start, env=env, secrets=tuple(name for name in start.secrets if name not in names))

    return replace(plan, parts=tuple(replace(part, starts=tuple(map(remove, part.starts))) for part in plan.parts))


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
    """Commit, branch and whether tracked files differ from it; empty outside of a repository.

    Runs nothing that the repository names, and writes nothing; None where that leaves it open whether files differ.
    """
    commit = _ask_git(here, "rev-parse", "HEAD")
    top = None if commit is None else _ask_git(here, "rev-parse", "--show-toplevel")
    if commit is None or top is None:
        return {}
    branch = _ask_git(here, "rev-parse", "--abbrev-ref", "HEAD")
    staged = _ask_git(here, "diff-index", "--cached", "--name-only", "--ignore-submodules=all", "HEAD")
    files = _ask_git(here, "ls-files", "--stage", "-z", "--full-name", ":/")
    dirty = None if staged is None or files is None else bool(staged) or _differ_from_index(Path(top), files)
    return {"commit": commit, "branch": branch, "dirty": dirty}


def _differ_from_index(top: Path, files: str) -> bool | None:
    """Whether a tracked file has other content; `git status` would run the filters that the repository configures."""
    left = _MOST_HASHED
    for entry in files.split("\0")[:-1]:
        mode, expected, stage, path = re.split("[ \t]", entry, maxsplit=3)
        if mode == _SUBMODULE:
            continue
        content = _read_content(top / path, left)
        if content is None or stage != "0":
            return True
        left -= len(content)
        if left < 0:
            return None
        kind = "sha1" if len(expected) == _SHA1_DIGITS else "sha256"
        found = hashlib.new(kind, b"blob %d\0" % len(content) + content, usedforsecurity=False)
        if found.hexdigest() != expected:
            return None if _converts_files(top) else True
    return False


def _read_content(path: Path, most: int) -> bytes | None:
    """At most one byte more than `most`; None if there is no file or link."""
    try:
        if path.is_symlink():
            return os.fsencode(path.readlink())
        with open_foreign_file(path) as file:
            return file.read(most + 1)
    except OSError:
        return None


def _converts_files(top: Path) -> bool:
    """Whether files may differ from what git stores because git converts them: by a filter, or their line ends."""
    rules = _read_content(top / ".gitattributes", _MOST_HASHED) or b""
    autocrlf = _ask_git(top, "config", "core.autocrlf")
    return any(word in rules for word in _CONVERSIONS) or autocrlf not in {None, "false"}


def _ask_git(here: Path, *words: str) -> str | None:
    # The settings of a repository may name programs: hooks, a monitor, and what fetches objects that it lacks. A
    # directory that only looks like a bare repository may be part of a clone.
    settings = (*("core.fsmonitor=false", f"core.hooksPath={os.devnull}"), "safe.bareRepository=explicit")
    # Its references may be links to /dev/zero, which git would read into memory.
    argv = ["sh", "-c", f'ulimit -d {_GIT_MEMORY // 1024}; exec "$@"', "sh"]
    argv += ["git", *(word for setting in settings for word in ("-c", setting)), "-C", str(here), *words]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
    # Unlike the setting protocol.allow, it overrides what the repository allows for one protocol.
    env["GIT_ALLOW_PROTOCOL"] = "none"
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip("\n") if done.returncode == 0 else None
