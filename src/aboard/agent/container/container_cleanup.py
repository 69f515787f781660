"""Removes the containers that Podman and Docker leave when they are killed, by the run's label.

A record beside the run's directory says which runtimes to ask, for whoever cleans up. Apptainer leaves only files in
the run's directory and processes, which are found by parent and run id as outside.
"""

from __future__ import annotations

import contextlib
import json
import os

from aboard.agent import frames, process_tree, run_directory
from aboard.agent.container.container_command import RUN_LABEL, run_after_setup
from aboard.agent.container.container_processes import DETACHED_RUNTIMES

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

# Variables with which a runtime finds its storage or its daemon; none of them is a secret.
RUNTIME_VARIABLES = (
    *("HOME", "PATH", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME"),
    *("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINER_HOST", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT"),
)
# What a line of the record has.
ENTRY = {"runtime": str, "setup": [str], "env": {str: str}}
# A rootless Podman on a busy node takes seconds.
COMMAND_SECONDS = 30.0
# Podman refuses to remove a container whose processes were killed, and does so at the next try.
REMOVALS = 4


def record_runtime(directory: str, runtime: str, setup: Sequence[str], env: Mapping[str, str]) -> None:
    """Records that containers of this runtime may be left; `setup` are the words before its command."""
    if runtime in DETACHED_RUNTIMES:
        found = {name: env[name] for name in RUNTIME_VARIABLES if name in env}
        # A full disk costs the clean-up, not the rank.
        with contextlib.suppress(OSError):
            _add_entry(directory, {"runtime": runtime, "setup": list(setup), "env": found})


def remove_containers(run: str, directory: str) -> bool:
    """Removes the run's containers; returns whether a runtime was started for that."""
    entries = _read_entries(directory)
    for entry in entries:
        with contextlib.suppress(OSError):
            _remove_labelled(run, entry)
    return bool(entries)


def _remove_labelled(run: str, entry: dict[str, Any]) -> None:
    runtime, setup = entry["runtime"], entry["setup"]
    # The run's id marks what the runtime itself leaves: Podman starts a process that keeps the user's namespaces.
    env = {**os.environ, **entry["env"], process_tree.RUN_ID: run}
    label = "label=%s=%s" % (RUN_LABEL, run)
    for _ in range(REMOVALS):
        listed = _run_command(setup, [runtime, "ps", "--all", "--quiet", "--no-trunc", "--filter", label], env)
        names = [word for word in listed.split() if word.isalnum()]
        if not names:
            return
        now = ["--time=0"] if runtime == "podman" else []
        _run_command(setup, [runtime, "rm", "--force", *now, *names], env)


def _run_command(setup: list[str], words: list[str], env: dict[str, str]) -> str:
    import subprocess  # noqa: PLC0415 - costs 10 ms, and only a run in containers needs it

    with contextlib.suppress(subprocess.SubprocessError):
        done = subprocess.run(
            run_after_setup(setup, words),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        return done.stdout.decode("ascii", "replace")
    return ""


def _add_entry(directory: str, entry: dict[str, Any]) -> None:
    """Adds a line once: every rank of a node has the same."""
    if entry not in _read_entries(directory):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(directory + run_directory.RECORD_SUFFIX, flags, 0o600), "w", encoding="utf-8") as record:
            record.write(json.dumps(entry) + "\n")


def _read_entries(directory: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    with contextlib.suppress(OSError), open(directory + run_directory.RECORD_SUFFIX, "rb") as record:
        for line in record:
            # The last line may be incomplete on a full disk.
            with contextlib.suppress(frames.FrameError):
                entries.append(frames.decode_fields(frames.unpack(line), ENTRY))
    return entries
