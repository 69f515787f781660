"""Trainings that others started: which processes are their ranks, which launchers still wait for each other, and a look.

Environments and command lines are read here and stay here, for they hold secrets: of each process only its numbers, where
it meets the others, its directory and its script's name leave the node.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import time

from aboard.agent import frames, launchers, tree
from aboard.agent.processes import TICKS, read, stat

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from aboard.agent.asks import Asks

# How a rank is told which one of how many it is: torchrun and all that keep to its words, Slurm, Open MPI.
NUMBERS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
# With it, torchrun's own process has the store, and rank 0 is a guest there as all others.
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
WORDS = {word for pair in NUMBERS for word in pair} | {ADDRESS, PORT, AGENT_STORE, tree.RUN_ID, *launchers.VARIABLES}
MOST = 256
ENVIRON_LIMIT = 1024 * 1024
MAPS_LIMIT = 16 * 1024 * 1024
LONGEST = 255
# starttime in /proc/PID/stat, counted from the state behind the name: proc(5).
BEGAN = 19
STACKS_SECONDS = 4.0
LOOK_SECONDS = 3.0


def take(asks: Asks, message: frames.Message, reply: Callable[[frames.Message], None]) -> None:
    """In a child that tells piece by piece: whatever hangs, what was seen before is answered."""

    def work(tell: Callable[[bytes], None]) -> None:
        _look(message, lambda piece: tell(json.dumps(piece).encode() + b"\n"))

    def told(outcome: frames.Message) -> None:
        answer: dict[str, Any] = {"found": [], "wall": time.time(), "children": {}, "node": {}}
        for line in outcome["stdout"].split("\n"):
            with contextlib.suppress(ValueError):
                piece = json.loads(line)
                answer["found"] = piece.pop("found", answer["found"])
                for pid, more in piece.pop("children", {}).items():
                    answer["children"].setdefault(pid, {}).update(more)
                answer["node"].update(piece)
        reply(answer)

    asks.fork_telling(message, work, told)


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

    Where there are none, launchers that still wait for each other are told instead.
    """
    table = tree.parents()
    if pids is not None:
        return [_given(pid, table) for pid in pids[:MOST]]
    above = {os.getpid(), *_above(os.getpid(), table)}
    mine = [_Process(pid) for pid in sorted(table) if pid not in above and _owner(pid) == os.getuid()]
    known = {each.pid: each for each in mine if tree.RUN_ID not in each.env}
    ranks = _ranks(known, table)
    waiting = _waiting(known, table, ranks)
    return [each.told() for each in [*ranks, *waiting][:MOST]]


class _Process:
    """One process, by its environment and its command line."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.env = environment(read("/proc/%d/environ" % pid, ENVIRON_LIMIT))
        self.words = [word.decode("utf-8", "replace") for word in read("/proc/%d/cmdline" % pid).split(b"\0")[:-1]]
        self.launcher = launchers.launcher(self.words)
        self.numbers = numbers(self.env)

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.numbers, self.env.get(ADDRESS), self.env.get(PORT)

    @property
    def python(self) -> bool:
        with contextlib.suppress(OSError):
            return os.path.basename(os.readlink("/proc/%d/exe" % self.pid)).startswith(("python", "pypy"))
        return False

    @property
    def torch(self) -> bool:
        return b"/libtorch" in read("/proc/%d/maps" % self.pid, MAPS_LIMIT)

    def told(self) -> dict[str, Any]:
        rank, world = self.numbers if self.numbers is not None else (None, None)
        told = {
            "pid": self.pid,
            "rank": rank,
            "world": world,
            "address": self.env.get(ADDRESS, ""),
            "port": _count(self.env.get(PORT, "")),
            "torch": self.torch,
            "hosts": rank == 0 and self.env.get(AGENT_STORE) != "True",
        }
        if self.launcher:
            met = launchers.meeting(self.words, self.env)
            told.update(
                rank=_count(met.get("number", "")), world=_count(met["nodes"]), address=met["address"][:LONGEST]
            )
            told.update(port=_count(met["port"]), hosts=told["rank"] == 0, launcher=self.launcher)
        told.update(cwd=_cwd(self.pid), began=_began(self.pid), user=_user(self.pid), what=what(self.words))
        return told


def environment(raw: bytes) -> dict[str, str]:
    """Of all variables, those few that tell which rank it is, and of which world."""
    found = {}
    for entry in raw.split(b"\0"):
        name, _, value = entry.partition(b"=")
        word = name.decode("ascii", "replace")
        if word in WORDS:
            found[word] = value.decode("ascii", "replace")[:LONGEST]
    return found


def numbers(env: dict[str, str]) -> tuple[int, int] | None:
    """Its rank and how many there are, by the first launcher's words that it has."""
    for rank, world in NUMBERS:
        one, all_ = _count(env.get(rank, "")), _count(env.get(world, ""))
        if one is not None and all_ is not None and one < all_:
            return one, all_
    return None


def what(words: Sequence[str]) -> str:
    """The program and its script or module, as in `python train.py`, without the arguments."""
    shown = [os.path.basename(words[0])] if words else []
    for word, following in zip(words[1:], [*words[2:], ""]):
        if word == "-m":
            shown.append(following)
            break
        if not word.startswith("-"):
            shown.append(os.path.basename(word))
            break
    return " ".join(shown)[:80]


def _given(pid: int, table: dict[int, int]) -> dict[str, Any]:
    if pid not in table:
        return {"pid": pid, "why": "absent"}
    if os.getuid() not in (0, _owner(pid)):
        return {"pid": pid, "why": "denied", "user": _user(pid)}
    process = _Process(pid)
    if tree.RUN_ID in process.env:
        return {"pid": pid, "why": "ours", "run": process.env[tree.RUN_ID]}
    return process.told()


def _ranks(known: dict[int, _Process], table: dict[int, int]) -> list[_Process]:
    """The topmost Python of each rank: launchers and shells are above it, its data workers are below."""
    fit = {pid: each for pid, each in known.items() if each.numbers and not each.launcher and each.python}
    families: dict[int, list[_Process]] = {}
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


def _waiting(known: dict[int, _Process], table: dict[int, int], ranks: Iterable[_Process]) -> list[_Process]:
    """Launchers that have started no rank yet: they meet each other first."""
    busy = {other for rank in ranks for other in _above(rank.pid, table)}
    meet = [each for each in known.values() if each.launcher in launchers.MEET and each.python and each.pid not in busy]
    numbers = {each.pid for each in meet}
    return [each for each in meet if table.get(each.pid) not in numbers]


def _told_by_torch(process: _Process) -> bool:
    return all(word in process.env for word in NUMBERS[0])


def _above(pid: int, table: dict[int, int]) -> list[int]:
    found: list[int] = []
    while table.get(pid, 0) > 0 and table[pid] not in found:
        pid = table[pid]
        found.append(pid)
    return found


def _count(text: str) -> int | None:
    return int(text) if text.isdigit() and len(text) < 9 else None  # noqa: PLR2004 - no world has as many


def _owner(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.stat("/proc/%d" % pid).st_uid
    return -1


def _user(pid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(_owner(pid)).pw_name
    return str(_owner(pid))


def _cwd(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/%d/cwd" % pid)
    return ""


def _began(pid: int) -> float:
    """When it began, by this node's clock."""
    fields = stat(pid)
    up = float(read("/proc/uptime", 64).split()[0])
    return time.time() - (up - int(fields[BEGAN]) / TICKS) if len(fields) > BEGAN else 0.0
