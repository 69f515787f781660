"""Finds external jobs: which processes are their ranks, and which launchers still wait for each other."""

from __future__ import annotations

import os
import time

from aboard.agent import forked_work, frames, process_tree
from aboard.agent.inspect import launcher_detection
from aboard.agent.inspect.external_process import RANK_VARIABLES, ExternalProcess
from aboard.agent.process_tree import list_ancestors
from aboard.agent.procfs import read_owner, resolve_user

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from aboard.agent.requests import RequestRunner

MOST = 256
STACKS_SECONDS = 4.0
SNAPSHOT_SECONDS = 3.0


def answer_external_jobs_request(
    runner: RequestRunner, message: frames.Message, reply: Callable[[frames.Message], None]
) -> None:
    """Works in a child that reports step by step: if one step hangs, the earlier results are still returned."""

    def complete(outcome: frames.Message) -> None:
        answer: dict[str, Any] = {"found": [], "wall": time.time(), "children": {}, "node": {}}
        for piece in forked_work.parse_json_lines(frames.text_to_bytes(outcome["stdout"])):
            answer["found"] = piece.pop("found", answer["found"])
            for pid, more in piece.pop("children", {}).items():
                answer["children"].setdefault(pid, {}).update(more)
            answer["node"].update(piece)
        reply(answer)

    runner.fork_streaming(message, forked_work.wrap_json_lines(lambda report: _collect_jobs(message, report)), complete)


def _collect_jobs(message: frames.Message, report: Callable[[dict[str, Any]], None]) -> None:
    from aboard.agent.inspect.py_spy_stacks import dump_stacks  # noqa: PLC0415 - as above
    from aboard.agent.inspect.snapshot_collector import collect_snapshot  # noqa: PLC0415 - only the inspecting child pays for it

    pids = message.get("pids")
    processes = find_external_ranks(None if pids is None else [int(pid) for pid in pids])
    report({"found": processes})
    visible = [each["pid"] for each in processes if "why" not in each]
    if visible:
        # Before the rest: py-spy uses a core for a moment, which must not count as another process's load.
        stacks_by_pid = dump_stacks(visible, STACKS_SECONDS)
        report({"children": {pid: {"stack": stack} for pid, stack in stacks_by_pid.items()}})
    roots = {str(pid): pid for pid in visible}
    paths = list(dict.fromkeys(each["cwd"] for each in processes if each.get("cwd")))
    collect_snapshot({**message, "paths": paths}, roots, roots, SNAPSHOT_SECONDS, report)


def find_external_ranks(pids: Sequence[int] | None) -> list[dict[str, Any]]:
    """These processes, each with a `why` if it may not be inspected; without any, all ranks of this user.

    The result includes launchers without ranks, and one process of each Aboard run. A requested launcher selects its
    ranks, and a requested rank selects all of its world.
    """
    table = process_tree.read_parents()
    above = {os.getpid(), *list_ancestors(os.getpid(), table)}
    mine = [ExternalProcess(pid) for pid in sorted(table) if pid not in above and os.getuid() in (0, read_owner(pid))]
    candidates = {each.pid: each for each in mine if process_tree.RUN_ID not in each.env}
    ranks = _select_ranks(candidates, table)
    if pids is not None:
        descriptions = [description for pid in pids[:MOST] for description in _describe_requested(pid, table, ranks)]
        return list({description["pid"]: description for description in descriptions}.values())
    own = [
        each
        for each in [*ranks, *_select_waiting_launchers(candidates, table, ranks)]
        if read_owner(each.pid) == os.getuid()
    ]
    own_runs = {
        each.env[process_tree.RUN_ID]: each.pid for each in mine if process_tree.RUN_ID in each.env and each.numbers
    }
    return [each.describe() for each in own[:MOST]] + [
        _describe_own_run(pid, run) for run, pid in list(own_runs.items())[:MOST]
    ]


def _describe_requested(pid: int, table: dict[int, int], ranks: Sequence[ExternalProcess]) -> list[dict[str, Any]]:
    if pid not in table:
        return [{"pid": pid, "why": "absent"}]
    if os.getuid() not in (0, read_owner(pid)):
        return [{"pid": pid, "why": "denied", "user": resolve_user(read_owner(pid))}]
    process = ExternalProcess(pid)
    if process_tree.RUN_ID in process.env:
        return [_describe_own_run(pid, process.env[process_tree.RUN_ID])]
    below = [each.describe() for each in ranks if pid in list_ancestors(each.pid, table)]
    if below and (process.launcher or not process.python):
        return below
    return [process.describe(), *(each.describe() for each in ranks if _is_same_world(process, each))]


def _describe_own_run(pid: int, run: str) -> dict[str, Any]:
    return {"pid": pid, "why": "ours", "run": run}


def _is_same_world(process: ExternalProcess, other: ExternalProcess) -> bool:
    """Whether it is another rank of the same world."""
    if process.numbers is None or other.numbers is None or process.launcher:
        return False
    (rank, world), (number, size) = process.numbers, other.numbers
    return rank != number and (world, *process.identity[1:]) == (size, *other.identity[1:])


def _select_ranks(candidates: dict[int, ExternalProcess], table: dict[int, int]) -> list[ExternalProcess]:
    """The topmost Python process of each rank: launchers and shells are above it, data workers below."""
    eligible = {pid: each for pid, each in candidates.items() if each.numbers and not each.launcher and each.python}
    families: dict[int, list[ExternalProcess]] = {}
    for pid, each in eligible.items():
        same = [
            other
            for other in list_ancestors(pid, table)
            if other in eligible and eligible[other].identity == each.identity
        ]
        families.setdefault(same[-1] if same else pid, []).append(each)
    # Under Slurm a script that starts ranks has rank numbers of its own, which differ from theirs.
    parents = {other for pid in families if _has_torch_variables(eligible[pid]) for other in list_ancestors(pid, table)}
    ranks = []
    for top, members in families.items():
        if _has_torch_variables(eligible[top]) or top not in parents:
            members.sort(key=lambda each: (len(list_ancestors(each.pid, table)), each.pid))
            ranks.append(next((each for each in members if each.torch), eligible[top]))
    return ranks


def _select_waiting_launchers(
    candidates: dict[int, ExternalProcess], table: dict[int, int], ranks: Iterable[ExternalProcess]
) -> list[ExternalProcess]:
    """Launchers that have not started a rank yet: their own rendezvous comes first."""
    busy = {other for rank in ranks for other in list_ancestors(rank.pid, table)}
    meet = [
        each
        for each in candidates.values()
        if each.launcher in launcher_detection.RENDEZVOUS_LAUNCHERS and each.python and each.pid not in busy
    ]
    numbers = {each.pid for each in meet}
    return [each for each in meet if table.get(each.pid) not in numbers]


def _has_torch_variables(process: ExternalProcess) -> bool:
    return all(word in process.env for word in RANK_VARIABLES[0])
