"""Ranks that can't go on whatever their code does: stopped by a signal, held by a debugger, or asleep in the kernel."""

import re
from collections.abc import Iterator

from aboard.core.evidence import Evidence, View
from aboard.core.rankset import fold_ranks
from aboard.core.verdict import Cause, RuledOut, Said, Sure
from aboard.core.witness import NodeWitness, Process
from aboard.diagnoses import Fix, death, hang
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.verdicts.commands import recheck

# Where the kernel waits for a file system of another machine or another program.
_FILES = re.compile(
    r"rpc_|nfs|request_wait_answer|fuse|folio_wait|io_schedule|cifs|smb|ceph|lustre|\bll_|cl_sync|gpfs|wait_on_page|p9_|v9fs"
)
# Of the looks in half a second, nearly all: a disk that works lets a process go now and then.
_ALWAYS = 0.85
# A disk that is only slow is given this time.
_SLOW_DISK_SECONDS = 10.0


def stopped(evidence: Evidence) -> Iterator[Said]:
    """State T: the process lives and does nothing until somebody lets it go on."""
    held = [view for view in evidence.views if view.alive and _all(view, "T")]
    for node, views in _by_node(held).items():
        pids = [str(view.seen.process.pid) for view in views if view.seen and view.seen.process]
        yield Cause(
            finding=death.RANK_STOPPED.finding(
                nodes=(node,),
                ranks=tuple(view.rank for view in views),
                seen=f"rank {fold_ranks(view.rank for view in views)} on {node} is stopped (SIGSTOP)",
                fix=death.RANK_STOPPED.fix("continue", pids=pids, node=node),
            ),
            sure=Sure.CERTAIN,
        )
    for view in evidence.views:
        if view.alive and _all(view, "t"):
            yield Cause(
                finding=hang.TRACED.finding(
                    nodes=(view.node,),
                    ranks=(view.rank,),
                    seen=f"rank {view.rank} on {view.node} is held by a debugger",
                    fix=hang.TRACED.fix(pid=_pid(view), node=view.node),
                ),
                sure=Sure.CERTAIN,
            )
    if evidence.witness and not held:
        yield RuledOut(what="a rank that somebody stopped", why="no rank's process is in state T")


def mounted(evidence: Evidence) -> Iterator[Said]:
    """Asleep in the kernel for a file system that does not answer; the look at its disk may hang on the same."""
    found = False
    for name, node in evidence.witness.items():
        waiting = [view for view in evidence.views if view.node == name and view.alive and _on_files(view)]
        hung = node.hung.match(r"^the disk of (.*)")
        asked = Untrusted(hung[1]) if hung else NO_TEXT
        quiet = evidence.quiet or 0.0
        if not waiting or not (asked or _dead_kind(node, waiting) or quiet >= _SLOW_DISK_SECONDS):
            continue
        found = True
        place, kind = _mount(node, waiting, asked)
        ranks = tuple(view.rank for view in waiting)
        yield Cause(
            finding=hang.MOUNT.finding(
                nodes=(name,),
                ranks=ranks,
                seen=f"rank {fold_ranks(ranks)} on {name} waits in the kernel for {_what(waiting)}"
                + (
                    f", and {place.visible()} ({kind}) does not answer"
                    if asked
                    else f" on {place.visible()} ({kind})"
                    if place
                    else ""
                ),
                fix=_unhung(evidence, name, place, kind),
                about=(place.visible(),) if place else (),
            ),
            sure=Sure.CERTAIN if asked or _dead_kind(node, waiting) else Sure.STRONG,
        )
    if evidence.witness and not found:
        yield RuledOut(what="a mount that does not answer", why="no rank sleeps in the kernel for a file")


RULES = (stopped, mounted)


def _unhung(evidence: Evidence, name: str, place: Untrusted, kind: str) -> Fix:
    """Let go first, with an error, whoever waits; what was mounted comes back when its server does."""
    if place in ("", "/"):
        return hang.MOUNT.fix("check", check=recheck(evidence, (name,), "storage", "which one is dead"))
    source = next((mount[2] for mount in evidence.witness[name].mounts if mount[0] == place), NO_TEXT)
    if ":" in source or source.startswith("//"):
        return hang.MOUNT.fix("remote", kind=kind, source=source, place=place, node=name)
    return hang.MOUNT.fix("local", place=place, node=name)


def _all(view: View, letter: str) -> bool:
    return bool(view.states) and set(view.states) == {letter}


def _on_files(view: View) -> bool:
    seen = view.seen
    if seen is None or seen.process is None:
        return False
    return any(_waits(process) for process in (seen.process, *seen.workers))


def _waits(process: Process) -> bool:
    looks = process.states or process.state
    asleep = looks.count("D") / max(1, len(looks)) >= _ALWAYS
    still = set(looks) <= {"D", "S"} and process.cpu < 0.05  # noqa: PLR2004 - a twentieth of a core is no work
    return asleep or (still and _FILES.search(process.wchan) is not None)


def _file(views: list[View]) -> Untrusted:
    for view in views:
        if view.seen is not None and view.seen.process is not None:
            for process in (view.seen.process, *view.seen.workers):
                if _waits(process) and process.file.startswith("/"):
                    return process.file
    return NO_TEXT


def _what(views: list[View]) -> str:
    seen = views[0].seen
    process = seen.process if seen is not None else None
    where = f" at {views[0].site}" if views[0].site is not None else ""
    return f"{_file(views).visible() or 'a file'} ({process.wchan if process else ''}){where}"


def _mount(node: NodeWitness, views: list[View], asked: Untrusted) -> tuple[Untrusted, str]:
    """The mount that a file is on: the longest that is a beginning of its path."""
    path = _file(views) or asked
    fitting = [mount for mount in node.mounts if path == mount[0] or path.startswith(mount[0].raw().rstrip("/") + "/")]
    best = max(fitting, key=lambda mount: len(mount[0]), default=None)
    return (best[0], best[1]) if best is not None and path else (asked, "")


_REMOTE = re.compile(r"nfs|cifs|smb|fuse|ceph|lustre|gpfs|beegfs|9p|afs|gluster", re.IGNORECASE)


def _dead_kind(node: NodeWitness, views: list[View]) -> bool:
    """Whether the kernel itself waits for somebody else's server."""
    _place, kind = _mount(node, views, NO_TEXT)
    processes = [each for view in views if view.seen and view.seen.process for each in (view.seen.process,)]
    return bool(_REMOTE.search(kind)) or any(re.search(r"rpc_|nfs|request_wait|fuse", each.wchan) for each in processes)


def _by_node(views: list[View]) -> dict[str, list[View]]:
    found: dict[str, list[View]] = {}
    for view in views:
        found.setdefault(view.node, []).append(view)
    return found


def _pid(view: View) -> int:
    return view.seen.process.pid if view.seen is not None and view.seen.process is not None else 0
