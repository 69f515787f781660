"""Ranks blocked outside their code: stopped by a signal, traced by a debugger, or asleep in the kernel."""

import re
from collections.abc import Iterator

from aboard.core.evidence.node_snapshot import NodeSnapshot, ProcessSnapshot
from aboard.core.evidence.run_evidence import Evidence, RankView, list_ranks
from aboard.core.evidence.verdict import RuledOut, RuleResult
from aboard.core.text.input_text import agree
from aboard.core.text.rank_sets import name_ranks
from aboard.diagnoses import Confidence, Fix
from aboard.diagnoses.runs import death
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.hang import diagnoses as hang
from aboard.doctor.shared.fix_commands import build_check_command

# Kernel functions that wait for a remote or FUSE file system.
_FILES = re.compile(
    r"rpc_|nfs|request_wait_answer|fuse|folio_wait|io_schedule|cifs|smb|ceph|lustre|\bll_|cl_sync|gpfs|wait_on_page|p9_|v9fs"
)
# Nearly all samples within half a second: a working disk lets a process run now and then.
_ALWAYS = 0.85
# A slow disk gets this much time.
_SLOW_DISK_SECONDS = 10.0


def find_stopped_ranks(evidence: Evidence) -> Iterator[RuleResult]:
    """State T: the process does nothing until it is continued."""
    stopped_views = [view for view in evidence.views if view.alive and _has_only_state(view, "T")]
    for node, views in _group_by_node(stopped_views).items():
        pids = [str(view.seen.process.pid) for view in views if view.seen and view.seen.process]
        yield death.RANK_STOPPED.finding(
            nodes=(node,),
            ranks=tuple(view.rank for view in views),
            seen=f"{name_ranks(list_ranks(views))} on {node} {agree(views, 'is', 'are')} stopped (SIGSTOP)",
            fix=death.RANK_STOPPED.fix("continue", pids=pids, node=node),
        ).as_cause(Confidence.CERTAIN)
    for view in evidence.views:
        if view.alive and _has_only_state(view, "t"):
            yield hang.TRACED.finding(
                nodes=(view.node,),
                ranks=(view.rank,),
                seen=f"rank {view.rank} on {view.node} is stopped by a debugger",
                fix=hang.TRACED.fix(pid=_get_pid(view), node=view.node),
            ).as_cause(Confidence.CERTAIN)
    if evidence.snapshots and not stopped_views:
        yield RuledOut(what="a stopped rank", why="no rank's process is in state T")


def find_hung_mounts(evidence: Evidence) -> Iterator[RuleResult]:
    """Ranks asleep in the kernel on a file system that does not respond; the snapshot of its disk may hang too."""
    found = False
    for name, node in evidence.snapshots.items():
        waiting = [view for view in evidence.views if view.node == name and view.alive and _is_waiting_for_files(view)]
        hung = node.hung.match(r"^the disk of (.*)")
        path = Untrusted(hung[1]) if hung else NO_TEXT
        quiet = evidence.quiet or 0.0
        if not waiting or not (path or _is_remote_wait(node, waiting) or quiet >= _SLOW_DISK_SECONDS):
            continue
        found = True
        place, kind = _find_mount(node, waiting, path)
        ranks = tuple(view.rank for view in waiting)
        yield hang.MOUNT.finding(
            nodes=(name,),
            ranks=ranks,
            seen=f"{name_ranks(ranks)} on {name} {agree(ranks, 'is', 'are')} waiting in the kernel for"
            f" {_describe_wait(waiting)}"
            + (
                f", and {place.visible()} ({kind}) does not respond"
                if path
                else f" on {place.visible()} ({kind})"
                if place
                else ""
            ),
            fix=_build_mount_fix(evidence, name, place, kind),
            about=(place.visible(),) if place else (),
        ).as_cause(Confidence.CERTAIN if path or _is_remote_wait(node, waiting) else Confidence.STRONG)
    if evidence.snapshots and not found:
        yield RuledOut(what="a mount that does not respond", why="no rank is blocked in the kernel on a file")


RULES = (find_stopped_ranks, find_hung_mounts)


def _build_mount_fix(evidence: Evidence, name: str, place: Untrusted, kind: str) -> Fix:
    """Unmounts first, which releases waiting processes with an error; the mount returns with its server."""
    if place in ("", "/"):
        return hang.MOUNT.fix(
            "check", check=build_check_command(evidence, (name,), "storage", "shows which mount is dead")
        )
    source = next((mount[2] for mount in evidence.snapshots[name].mounts if mount[0] == place), NO_TEXT)
    if ":" in source or source.startswith("//"):
        return hang.MOUNT.fix("remote", kind=kind, source=source, place=place, node=name)
    return hang.MOUNT.fix("local", place=place, node=name)


def _has_only_state(view: RankView, letter: str) -> bool:
    return bool(view.states) and set(view.states) == {letter}


def _is_waiting_for_files(view: RankView) -> bool:
    snapshot = view.seen
    if snapshot is None or snapshot.process is None:
        return False
    return any(_is_asleep_on_file(process) for process in (snapshot.process, *snapshot.workers))


def _is_asleep_on_file(process: ProcessSnapshot) -> bool:
    states = process.states or process.state
    asleep = states.count("D") / max(1, len(states)) >= _ALWAYS
    still = set(states) <= {"D", "S"} and process.cpu < 0.05  # noqa: PLR2004 - below a twentieth of a core is idle
    return asleep or (still and _FILES.search(process.wchan) is not None)


def _find_file(views: list[RankView]) -> Untrusted:
    for view in views:
        if view.seen is not None and view.seen.process is not None:
            for process in (view.seen.process, *view.seen.workers):
                if _is_asleep_on_file(process) and process.file.startswith("/"):
                    return process.file
    return NO_TEXT


def _describe_wait(views: list[RankView]) -> str:
    snapshot = views[0].seen
    process = snapshot.process if snapshot is not None else None
    where = f" at {views[0].site}" if views[0].site is not None else ""
    return f"{_find_file(views).visible() or 'a file'} ({process.wchan if process else ''}){where}"


def _find_mount(node: NodeSnapshot, views: list[RankView], hung_path: Untrusted) -> tuple[Untrusted, str]:
    """The mount of a file: the one with the longest matching prefix."""
    path = _find_file(views) or hung_path
    fitting = [mount for mount in node.mounts if path == mount[0] or path.startswith(mount[0].raw().rstrip("/") + "/")]
    best = max(fitting, key=lambda mount: len(mount[0]), default=None)
    return (best[0], best[1]) if best is not None and path else (hung_path, "")


_REMOTE = re.compile(r"nfs|cifs|smb|fuse|ceph|lustre|gpfs|beegfs|9p|afs|gluster", re.IGNORECASE)


def _is_remote_wait(node: NodeSnapshot, views: list[RankView]) -> bool:
    """Whether the kernel waits for a remote server."""
    _place, kind = _find_mount(node, views, NO_TEXT)
    processes = [each for view in views if view.seen and view.seen.process for each in (view.seen.process,)]
    return bool(_REMOTE.search(kind)) or any(re.search(r"rpc_|nfs|request_wait|fuse", each.wchan) for each in processes)


def _group_by_node(views: list[RankView]) -> dict[str, list[RankView]]:
    found: dict[str, list[RankView]] = {}
    for view in views:
        found.setdefault(view.node, []).append(view)
    return found


def _get_pid(view: RankView) -> int:
    return view.seen.process.pid if view.seen is not None and view.seen.process is not None else 0
