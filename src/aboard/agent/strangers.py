"""Trainings that others started: which processes are their ranks, which launchers still wait for each other."""

from __future__ import annotations

import os
import time

from aboard.agent import frames, launchers, telling, tree
from aboard.agent.stranger import NUMBERS, Process, owner, user

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from aboard.agent.asks import Asks

MOST = 256
STACKS_SECONDS = 4.0
LOOK_SECONDS = 3.0


def take(asks: Asks, message: frames.Message, reply: Callable[[frames.Message], None]) -> None:
    """In a child that tells piece by piece: whatever hangs, what was seen before is answered."""

    def told(outcome: frames.Message) -> None:
        answer: dict[str, Any] = {"found": [], "wall": time.time(), "children": {}, "node": {}}
        for piece in telling.pieces(frames.data(outcome["stdout"])):
            answer["found"] = piece.pop("found", answer["found"])
            for pid, more in piece.pop("children", {}).items():
                answer["children"].setdefault(pid, {}).update(more)
            answer["node"].update(piece)
        reply(answer)

    asks.fork_telling(message, telling.in_pieces(lambda tell: _look(message, tell)), told)


def _look(message: frames.Message, tell: Callable[[dict[str, Any]], None]) -> None:
    from aboard.agent.onlooker import look  # noqa: PLC0415 - only the child that looks pays for it
    from aboard.agent.pyspy import stacks  # noqa: PLC0415 - as above

    given = message.get("pids")
    found = find(None if given is None else [int(pid) for pid in given])
    tell({"found": found})
    seen = [each["pid"] for each in found if "why" not in each]
    if seen:
        # Before the rest: py-spy takes a core for a moment, which is not to be seen as somebody's.
        told = stacks(seen, STACKS_SECONDS)
        tell({"children": {pid: {"stack": stack} for pid, stack in told.items()}})
    roots = {str(pid): pid for pid in seen}
    paths = list(dict.fromkeys(each["cwd"] for each in found if each.get("cwd")))
    look({**message, "paths": paths}, roots, roots, LOOK_SECONDS, tell)


def find(pids: Sequence[int] | None) -> list[dict[str, Any]]:
    """These processes, each with a `why` where it may not be looked at; without any, all ranks of this user.

    Launchers that have no ranks yet are told beside them, and one process of each run that is ours. A launcher that was
    given stands for its ranks, and a rank for all of its world.
    """
    table = tree.parents()
    above = {os.getpid(), *_above(os.getpid(), table)}
    mine = [Process(pid) for pid in sorted(table) if pid not in above and os.getuid() in (0, owner(pid))]
    known = {each.pid: each for each in mine if tree.RUN_ID not in each.env}
    ranks = _ranks(known, table)
    if pids is not None:
        given = [told for pid in pids[:MOST] for told in _given(pid, table, ranks)]
        return list({told["pid"]: told for told in given}.values())
    own = [each for each in [*ranks, *_waiting(known, table, ranks)] if owner(each.pid) == os.getuid()]
    kept = {each.env[tree.RUN_ID]: each.pid for each in mine if tree.RUN_ID in each.env and each.numbers}
    return [each.told() for each in own[:MOST]] + [_ours(pid, run) for run, pid in list(kept.items())[:MOST]]


def _given(pid: int, table: dict[int, int], ranks: Sequence[Process]) -> list[dict[str, Any]]:
    if pid not in table:
        return [{"pid": pid, "why": "absent"}]
    if os.getuid() not in (0, owner(pid)):
        return [{"pid": pid, "why": "denied", "user": user(pid)}]
    process = Process(pid)
    if tree.RUN_ID in process.env:
        return [_ours(pid, process.env[tree.RUN_ID])]
    below = [each.told() for each in ranks if pid in _above(each.pid, table)]
    if below and (process.launcher or not process.python):
        return below
    return [process.told(), *(each.told() for each in ranks if _beside(process, each))]


def _ours(pid: int, run: str) -> dict[str, Any]:
    return {"pid": pid, "why": "ours", "run": run}


def _beside(process: Process, other: Process) -> bool:
    """Whether it is another rank of the same world."""
    if process.numbers is None or other.numbers is None or process.launcher:
        return False
    (rank, world), (number, size) = process.numbers, other.numbers
    return rank != number and (world, *process.identity[1:]) == (size, *other.identity[1:])


def _ranks(known: dict[int, Process], table: dict[int, int]) -> list[Process]:
    """The topmost Python of each rank: launchers and shells are above it, its data workers are below."""
    fit = {pid: each for pid, each in known.items() if each.numbers and not each.launcher and each.python}
    families: dict[int, list[Process]] = {}
    for pid, each in fit.items():
        same = [other for other in _above(pid, table) if other in fit and fit[other].identity == each.identity]
        families.setdefault(same[-1] if same else pid, []).append(each)
    # Under Slurm a script that starts ranks has numbers of its own, and they haven't its.
    parents = {other for pid in families if _told_by_torch(fit[pid]) for other in _above(pid, table)}
    found = []
    for top, members in families.items():
        if _told_by_torch(fit[top]) or top not in parents:
            members.sort(key=lambda each: (len(_above(each.pid, table)), each.pid))
            found.append(next((each for each in members if each.torch), fit[top]))
    return found


def _waiting(known: dict[int, Process], table: dict[int, int], ranks: Iterable[Process]) -> list[Process]:
    """Launchers that have started no rank yet: they meet each other first."""
    busy = {other for rank in ranks for other in _above(rank.pid, table)}
    meet = [each for each in known.values() if each.launcher in launchers.MEET and each.python and each.pid not in busy]
    numbers = {each.pid for each in meet}
    return [each for each in meet if table.get(each.pid) not in numbers]


def _told_by_torch(process: Process) -> bool:
    return all(word in process.env for word in NUMBERS[0])


def _above(pid: int, table: dict[int, int]) -> list[int]:
    found: list[int] = []
    while table.get(pid, 0) > 0 and table[pid] not in found:
        pid = table[pid]
        found.append(pid)
    return found
