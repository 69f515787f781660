"""The progress of a sync, one line per node, and its result."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from aboard.commands.shared.number_format import format_count
from aboard.commands.shared.progress_bar import TransientView, render_bar
from aboard.core.cluster.file_sync import CollectedPath, LeftOutPath, NodeTreeResult, UploadProgress
from aboard.core.environment.sync_report import EnvironmentProgress
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.durations import MINUTE, format_duration
from aboard.diagnoses import AboardError, Finding
from aboard.diagnoses.untrusted import escape_text

BAR_CELLS = 20
MOST_LINES = 20
_MOST_LEFT_OUT = 5
# Lines without a terminal: one per node and this many seconds.
PLAIN_SECONDS = 5.0
_HEAD = "this machine"
_PHASES = {
    "looking": "comparing",
    "packing": "packing wheels",
    "checking": "comparing packages",
    "sending": "sending",
    "installing": "installing packages",
    "waiting": "waiting for another node",
    "done": "done",
}


class NodeRates:
    """The rate and remaining time of each node, from its first byte on."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began: dict[str, tuple[float, int]] = {}

    def describe(self, progress: UploadProgress | EnvironmentProgress) -> str:
        """`12 MiB of 30 MiB, 4 MiB/s, 5 s left`."""
        amount = f"{format_size(progress.done)} of {format_size(progress.total)}"
        now = self._clock()
        began, before = self._began.setdefault(progress.node, (now, progress.done))
        if now <= began or progress.done <= before:
            return amount
        rate = (progress.done - before) / (now - began)
        left = max(0, progress.total - progress.done) / rate
        return f"{amount}, {format_size(rate)}/s, {_format_seconds(left)} left"


class NodeProgressView(TransientView):
    """A line for each node that is still busy: live on a terminal; a pipe gets the same line once in a while."""

    def __init__(self, console: Console, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(console)
        self._console = console
        self._clock = clock
        self._rates = NodeRates(clock)
        self._lines: dict[str, tuple[UploadProgress | EnvironmentProgress, str]] = {}
        self._next: dict[str, float] = {}

    def __enter__(self) -> Self:
        return super().__enter__() if self._console.is_terminal else self

    def update(self, progress: UploadProgress | EnvironmentProgress) -> None:
        text = describe_progress(progress, self._rates)
        self._lines[progress.node] = (progress, text)
        now = self._clock()
        due = self._next.setdefault(progress.node, now + PLAIN_SECONDS)
        if not self._console.is_terminal and progress.total and now >= due and not _is_done(progress):
            self._next[progress.node] = now + PLAIN_SECONDS
            self._console.print(f"{progress.node or _HEAD}  {text}", markup=False, highlight=False, soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        busy = [line for line in self._lines.values() if not _is_done(line[0])]
        wide = max((len(progress.node or _HEAD) for progress, _ in busy), default=0)
        for progress, text in busy[:MOST_LINES]:
            line = Text(f"{progress.node or _HEAD:<{wide}}  ", no_wrap=True, overflow="ellipsis")
            if progress.total:
                line.append(render_bar(progress.done / progress.total, BAR_CELLS)).append("  ")
            yield line.append(text, style="dim")
        rest = len(busy) - MOST_LINES
        finished = sum(bool(name) and _is_done(progress) for name, (progress, _) in self._lines.items())
        counts = [format_count(rest, "more node")] if rest > 0 else []
        counts += [f"{format_count(finished, 'node')} done"] if finished else []
        if counts:
            yield Text("; ".join(counts), style="dim")


def describe_progress(progress: UploadProgress | EnvironmentProgress, rates: NodeRates) -> str:
    """The phase, and how much of it is done; with the rate and the time left while bytes are sent."""
    what = _PHASES[progress.phase]
    if not progress.total:
        return what
    if progress.phase == "sending":
        return f"{what}: {rates.describe(progress)}"
    if isinstance(progress, UploadProgress):
        return f"{what}: {format_size(progress.done)} of {format_size(progress.total)}"
    return f"{what}: {progress.done} of {progress.total}"


def _is_done(progress: UploadProgress | EnvironmentProgress) -> bool:
    return progress.phase == "done" or (progress.phase == "packing" and progress.done == progress.total)


def render_sync_table(results: Mapping[str, NodeTreeResult], *, dry: bool) -> Table:
    """A row per node: what was sent, what it had, what was deleted, and the time."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("node", "would send" if dry else "sent", "had", "would delete" if dry else "deleted", "seconds", ""):
        table.add_column(header, justify="left" if header in ("node", "") else "right", no_wrap=header != "")
    for name, result in results.items():
        table.add_row(name, *_format_row(result), Text(_describe_state(result), style="red" if result.error else "dim"))
    return table


def format_sync_lines(results: Mapping[str, NodeTreeResult], *, dry: bool) -> list[str]:
    """The same without a terminal: one line per node, with a word that grep finds."""
    verb = "would-sync" if dry else "synced"
    return [
        f"{'failed' if result.error else verb} {name}: {_describe_state(result)}"
        if result.error or not result.changed
        else f"{verb} {name}: sent {format_size(result.sent)} in {format_count(result.files, 'file')},"
        f"{_describe_peers(result)} had {format_size(result.had)}, deleted {result.deleted}, {result.seconds:.1f} s"
        for name, result in results.items()
    ]


def format_left_out(paths: Sequence[LeftOutPath], *, flag: bool, nodes: Sequence[str] = ()) -> list[str]:
    """What .gitignore names, the largest first, and how to send it; `flag` if the command has --ignored.

    `nodes` are the command's words that name the nodes.
    """
    if not paths:
        return []
    shown = ", ".join(
        f"{escape_text(each.path, 100)}/ ({format_count(each.files, 'file')}, {format_size(each.bytes)})"
        if each.is_directory
        else f"{escape_text(each.path, 100)} ({format_size(each.bytes)})"
        for each in paths[:_MOST_LEFT_OUT]
    )
    rest = f", and {len(paths) - _MOST_LEFT_OUT} more" if len(paths) > _MOST_LEFT_OUT else ""
    files, size = sum(each.files for each in paths), sum(each.bytes for each in paths)
    lines = [f"left out, since .gitignore names it: {format_count(files, 'file')}, {format_size(size)}: {shown}{rest}"]
    # A name that can't be typed is sent with the others.
    words = [f"--data={shlex.quote(each.path)}" for each in paths[:_MOST_LEFT_OUT] if each.path.isprintable()]
    every = ["--ignored    # sends all of it"] if flag else []
    command = shlex.join(["aboard", "sync", *nodes])
    return lines + [f"  if ranks need it: {command} {line}" for line in (*([" ".join(words)] if words else []), *every)]


def format_sync_json(
    results: Mapping[str, NodeTreeResult],
    findings: Sequence[Finding],
    *,
    special: int,
    left_out: Sequence[LeftOutPath] = (),
) -> str:
    nodes = {
        name: {
            "sent_bytes": result.sent,
            "had_bytes": result.had,
            "from_peers_bytes": result.from_peers,
            "files": result.files,
            "deleted": result.deleted,
            "up_to_date": not result.changed and result.error is None,
            "seconds": round(result.seconds, 3),
            "same_disk_as": result.same_disk_as,
            "error": _describe_failure(result.error),
        }
        for name, result in results.items()
    }
    warnings = [
        {"code": each.code, "nodes": list(each.nodes), "seen": each.seen, "fix": str(each.fix)} for each in findings
    ]
    ignored = {
        "files": sum(each.files for each in left_out),
        "bytes": sum(each.bytes for each in left_out),
        "largest": [
            {"path": escape_text(each.path, 300), "files": each.files, "bytes": each.bytes}
            for each in left_out[:_MOST_LEFT_OUT]
        ],
    }
    document = {"nodes": nodes, "findings": warnings, "skipped_special_files": special, "left_out": ignored}
    return json.dumps(document, indent=2, ensure_ascii=False)


def format_collected_json(found: Sequence[CollectedPath]) -> str:
    rows = [
        {
            "node": each.node,
            "target": each.target,
            "files": each.files,
            "bytes": each.bytes,
            "received_bytes": each.received,
            "skipped": each.skipped,
            "error": _describe_failure(each.error),
        }
        for each in found
    ]
    return json.dumps({"collected": rows}, indent=2, ensure_ascii=False)


def _describe_failure(error: AboardError | None) -> dict[str, str] | None:
    return None if error is None else {"code": error.code, "seen": error.seen, "fix": str(error.fix)}


def _describe_peers(result: NodeTreeResult) -> str:
    return f" {format_size(result.from_peers)} from other nodes," if result.from_peers else ""


def _format_row(result: NodeTreeResult) -> Sequence[str]:
    if result.error is not None:
        return ("-", "-", "-", f"{result.seconds:.1f}")
    return (format_size(result.sent), format_size(result.had), str(result.deleted), f"{result.seconds:.1f}")


def _describe_state(result: NodeTreeResult) -> str:
    if result.error is not None:
        return f"{result.error.seen} [{result.error.code}]"
    if result.same_disk_as is not None:
        return f"same disk as {result.same_disk_as}"
    if result.from_peers:
        return f"{format_size(result.from_peers)} from other nodes"
    return "" if result.changed else "up to date"


def _format_seconds(seconds: float) -> str:
    """Without the tenths of `format_duration`: an estimate that changes with every line."""
    return f"{seconds:.0f} s" if seconds < MINUTE else format_duration(seconds)
