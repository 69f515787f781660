"""What a rank does that others wait for: in words, from its state, its stack and what it waits for in the kernel."""

import shlex

from aboard.core.evidence import View
from aboard.core.words import visible
from aboard.diagnoses import Severity
from aboard.lazy import dataclass

# Cores that a process uses which works; one that only waits uses none.
BUSY = 0.2
# Whoever works is given time: to compute or to write may be what it is there for.
_BUSY_SECONDS = 45.0
_IDLE_SECONDS = 4.0
# Where no step has shown yet what is usual.
_FIRST_SECONDS = 8.0
_PURPOSE_SECONDS = {"checkpoint": 300.0, "evaluation": 300.0, "compiling": 300.0, "compile": 300.0}
# So many steps may pass while a rank is busy elsewhere.
_BUSY_STEPS = 30.0
_IDLE_STEPS = 8.0
_PURPOSES = {
    "checkpoint": "writes or reads a checkpoint",
    "evaluation": "evaluates",
    "compiling": "compiles",
    "compile": "compiles",
    "import": "imports modules",
    "data": "waits for data",
}


@dataclass(frozen=True, kw_only=True)
class Doing:
    """What it does, how that is called, and after how many seconds it is no more to be taken for work."""

    code: str
    words: str
    why: str
    fix: str
    patience: float
    severity: Severity = Severity.BLOCK


def doing(view: View, usual: float | None) -> Doing:
    """Told by what is surest: what it says itself, what it was written for, how it waits."""
    busy = view.cpu >= BUSY or 2 * view.states.count("R") > len(view.states) > 0
    where = f" at {view.site}" if view.site is not None else ""
    rank, node = view.rank, view.node
    look = f"aboard logs RUN --rank {rank}    # what it said last"
    purpose = _PURPOSES.get(view.at)
    if view.at in _PURPOSE_SECONDS and purpose:
        return Doing(
            code="hang-busy",
            words=f"{purpose}{where}",
            why="It does what a run has to do now and then, and the others wait for it.",
            fix=look,
            patience=_PURPOSE_SECONDS[view.at],
        )
    idle = _FIRST_SECONDS if usual is None else max(_IDLE_SECONDS, _IDLE_STEPS * usual)
    if view.at == "data":
        return _data(view, where, look, idle)
    if view.at == "collective" and not busy:
        return Doing(
            code="hang-mismatch",
            words=f"waits in another call of torch.distributed{where}",
            why="It waits for a message or a call that the others do not make: code or data made it go apart.",
            fix=look,
            patience=idle,
        )
    if busy:
        return Doing(
            code="hang-loop",
            words=f"is busy{where}, and uses {view.cpu:.1f} cores",
            why="It computes, or goes round in a loop, while all others wait for it in a collective.",
            fix=f"{look}\npy-spy dump --pid {_pid(view)}    # on {node}; where it is (needs py-spy)",
            patience=max(_BUSY_SECONDS if usual is None else 15.0, _BUSY_STEPS * (usual or 0.0)),
        )
    return _idle(view, where, look, idle)


def _data(view: View, where: str, look: str, idle: float) -> Doing:
    workers = view.seen.workers if view.seen is not None else ()
    stuck = [worker for worker in workers if worker.state in ("T", "D") or worker.cpu < BUSY]
    busy = any(worker.cpu >= BUSY for worker in workers) or view.cpu >= BUSY
    told = f"; its workers: {', '.join(f'{worker.name} ({worker.state})' for worker in stuck[:4])}" if stuck else ""
    return Doing(
        code="hang-data",
        words=f"waits for data{where}{told}",
        why="Its input does not come: a worker that hangs, a file or a service that does not answer.",
        fix=f"{_holders(view) or look}\naboard check --only storage    # does its storage answer?",
        patience=60.0 if busy else 1.5 * idle,
    )


def _idle(view: View, where: str, look: str, idle: float) -> Doing:
    process = view.seen.process if view.seen is not None else None
    call, file = (process.call, process.file) if process is not None else ("", "")
    if view.at == "network" or (call in ("connect", "recvfrom", "recvmsg") and file.startswith("socket:")):
        peer = _peer(view)
        return Doing(
            code="hang-outside",
            words=f"waits for {peer or 'an answer over the network'}{where}",
            why="It waits for a service outside of the run: a tracker, a download, a data base.",
            fix=f"{look}\n"
            + (f"curl -v --max-time 5 http://{peer}/    # on {view.node}; does it answer?" if peer else ""),
            patience=idle,
        )
    if view.at in ("lock", "queue") or call == "futex":
        return Doing(
            code="hang-lock",
            words=f"waits for a lock or another thread{where}",
            why="What it waits for is held or never comes: a deadlock in its own code.",
            fix=f"{look}\npy-spy dump --pid {_pid(view)}    # on {view.node}; all its threads (needs py-spy)",
            patience=idle,
        )
    what = f" in {call}" + (f" of {visible(file)}" if file else "") if call else ""
    verb = "sleeps" if "nanosleep" in call else "waits"
    return Doing(
        code="hang-absent",
        words=f"{verb}{what}{where}",
        why="It does nothing, and has not come to the collective in which all others wait.",
        fix=_holders(view) or look,
        patience=idle,
    )


def _holders(view: View) -> str:
    """Who else has the file that it waits for: a lock's owner, the one who should write to a pipe."""
    seen = view.seen
    waiting = [each for each in (seen.process, *seen.workers) if each is not None] if seen is not None else []
    file = next((each.file for each in waiting if each.file.startswith("/")), "")
    return (
        f"fuser -v {shlex.quote(file)}    # on {view.node}; who else has it, and should let it go or write"
        if file
        else ""
    )


def _peer(view: View) -> str:
    if view.seen is None or view.seen.process is None:
        return ""
    inode = view.seen.process.file.removeprefix("socket:[").rstrip("]")
    return next((each.remote for each in view.seen.sockets if str(each.inode) == inode), "")


def _pid(view: View) -> int:
    return view.seen.process.pid if view.seen is not None and view.seen.process is not None else 0
