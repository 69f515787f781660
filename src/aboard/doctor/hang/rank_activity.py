"""What a rank does that others wait for: described from its state, stack and kernel wait."""

from aboard.core.evidence.run_evidence import RankView
from aboard.diagnoses import Fix, RunFailure
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.hang import diagnoses as hang
from aboard.lazy_dataclass import dataclass

# Cores that a working process uses; one that only waits uses none.
BUSY = 0.2
# A busy rank gets more time: computing or writing may be legitimate.
_BUSY_SECONDS = 45.0
_IDLE_SECONDS = 4.0
# While the usual step time is unknown.
_FIRST_SECONDS = 8.0
# "compiling" is reported by the rank until torch is finished, which takes many minutes for a large model; "compile" is
# only read from its stack.
_PURPOSE_SECONDS = {"checkpoint": 300.0, "evaluation": 300.0, "compiling": 1800.0, "compile": 300.0}
# A rank may be busy for this many steps.
_BUSY_STEPS = 30.0
_IDLE_STEPS = 8.0
_PURPOSES = {
    "checkpoint": "writing or reading a checkpoint",
    "evaluation": "running an evaluation",
    "compiling": "compiling",
    "compile": "compiling",
    "import": "importing modules",
    "data": "waiting for data",
    "rendezvous": "waiting for rank 0 to listen on its port",
}


@dataclass(frozen=True, kw_only=True)
class RankActivity:
    """What a rank does, its diagnosis, and after how many seconds it no longer counts as work.

    `description` continues a sentence that ends with "is" or "are".
    """

    diagnosis: RunFailure
    description: str
    fix: Fix
    patience: float


def describe_activity(view: RankView, usual: float | None, *, run: str) -> RankActivity:
    """From the surest source: what the rank reports, the purpose of its code, how it waits."""
    busy = view.cpu >= BUSY or 2 * view.states.count("R") > len(view.states) > 0
    where = f" at {view.site}" if view.site is not None else ""
    purpose = _PURPOSES.get(view.at)
    if view.at in _PURPOSE_SECONDS and purpose:
        return RankActivity(
            diagnosis=hang.BUSY,
            description=f"{purpose}{where}",
            fix=hang.BUSY.fix(run=run, rank=view.rank),
            patience=_PURPOSE_SECONDS[view.at],
        )
    idle = _FIRST_SECONDS if usual is None else max(_IDLE_SECONDS, _IDLE_STEPS * usual)
    if view.at == "data":
        return _describe_data_wait(view, where, run, idle)
    if view.at == "collective" and not busy:
        return RankActivity(
            diagnosis=hang.MISMATCH,
            description=f"waiting in a different torch.distributed call{where}",
            fix=hang.MISMATCH.fix("logs", run=run, rank=view.rank),
            patience=idle,
        )
    if busy:
        return RankActivity(
            diagnosis=hang.LOOP,
            description=f"busy{where}, using {view.cpu:.1f} cores",
            fix=hang.LOOP.fix(run=run, rank=view.rank, pid=_get_pid(view), node=view.node),
            patience=max(_BUSY_SECONDS if usual is None else 15.0, _BUSY_STEPS * (usual or 0.0)),
        )
    return _describe_idle_wait(view, where, run, idle)


def _describe_data_wait(view: RankView, where: str, run: str, idle: float) -> RankActivity:
    workers = view.seen.workers if view.seen is not None else ()
    stuck = [worker for worker in workers if worker.state in ("T", "D") or worker.cpu < BUSY]
    busy = any(worker.cpu >= BUSY for worker in workers) or view.cpu >= BUSY
    workers_text = (
        f"; worker processes: {', '.join(f'{worker.name.visible()} ({worker.state})' for worker in stuck[:4])}"
        if stuck
        else ""
    )
    file = _find_awaited_file(view)
    return RankActivity(
        diagnosis=hang.DATA,
        description=f"waiting for data{where}{workers_text}",
        fix=hang.DATA.fix("holders", file=file, node=view.node)
        if file
        else hang.DATA.fix("logs", run=run, rank=view.rank),
        patience=60.0 if busy else 1.5 * idle,
    )


def _describe_idle_wait(view: RankView, where: str, run: str, idle: float) -> RankActivity:
    process = view.seen.process if view.seen is not None else None
    call, file = (process.call, process.file) if process is not None else ("", NO_TEXT)
    if view.at == "network" or (call in ("connect", "recvfrom", "recvmsg") and file.startswith("socket:")):
        peer = _find_peer_address(view)
        return RankActivity(
            diagnosis=hang.OUTSIDE,
            description=f"waiting for {peer or 'a reply over the network'}{where}",
            fix=hang.OUTSIDE.fix("answers", run=run, rank=view.rank, url=f"http://{peer}/", node=view.node)
            if peer
            else hang.OUTSIDE.fix("logs", run=run, rank=view.rank),
            patience=idle,
        )
    if view.at in ("lock", "queue") or call == "futex":
        return RankActivity(
            diagnosis=hang.LOCK,
            description=f"waiting for a lock or another thread{where}",
            fix=hang.LOCK.fix(run=run, rank=view.rank, pid=_get_pid(view), node=view.node),
            patience=idle,
        )
    what = f" in {call}" + (f" on {file.visible()}" if file else "") if call else ""
    verb = "sleeping" if "nanosleep" in call else "waiting"
    awaited_file = _find_awaited_file(view)
    return RankActivity(
        diagnosis=hang.ABSENT,
        description=f"{verb}{what}{where}",
        fix=hang.ABSENT.fix("holders", file=awaited_file, node=view.node)
        if awaited_file
        else hang.ABSENT.fix("logs", run=run, rank=view.rank),
        patience=idle,
    )


def _find_awaited_file(view: RankView) -> Untrusted:
    """The file that it waits for: another process holds its lock, or should write to the pipe."""
    snapshot = view.seen
    waiting = (
        [each for each in (snapshot.process, *snapshot.workers) if each is not None] if snapshot is not None else []
    )
    return next((each.file for each in waiting if each.file.startswith("/")), NO_TEXT)


def _find_peer_address(view: RankView) -> str:
    if view.seen is None or view.seen.process is None:
        return ""
    file = view.seen.process.file
    return next((each.remote for each in view.seen.sockets if file == f"socket:[{each.inode}]"), "")


def _get_pid(view: RankView) -> int:
    return view.seen.process.pid if view.seen is not None and view.seen.process is not None else 0
