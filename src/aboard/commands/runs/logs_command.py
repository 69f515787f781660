"""`aboard logs`."""

import os
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from time import time

import click

from aboard.commands.launch.slurm_forwarding import forward_to_batch_host
from aboard.commands.shared.json_output import dump_json
from aboard.commands.shared.log_lines import LogLineFormatter, format_raw, list_entries
from aboard.commands.shared.options.completion import complete_nodes, complete_runs
from aboard.commands.shared.printed_output import end_at_closed_pipe
from aboard.core.cluster.node_sets import expand_node_set
from aboard.core.run.event_kinds import AttemptStarted
from aboard.core.run.events import STREAMS
from aboard.core.text.durations import parse_duration
from aboard.core.text.fold_lines import FoldedLine
from aboard.core.text.rank_sets import parse_ranks
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import commands
from aboard.engine.records.read_logs import LogQuery, read_logs
from aboard.record.event_log import read_events
from aboard.record.rank_logs.merged_logs import LineSelection
from aboard.record.runs import Runs


class AttemptTimes:
    """Reads when attempts started from a run's events, and again when these have grown, since a run may be live."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self._size = -1
        self._starts: list[tuple[float, int]] = []

    def find_attempt(self, at: float) -> int | None:
        """The attempt during which this was printed; None while there was only one."""
        size = 0
        with suppress(OSError):
            size = self._events.stat().st_size
        if size != self._size:
            self._size = size
            events = ((event.at, event.body) for event in read_events(self._events))
            self._starts = [(at, body.number) for at, body in events if isinstance(body, AttemptStarted)]
        if len(self._starts) <= 1:
            return None
        return self._starts[max(0, bisect_right(self._starts, (at, inf)) - 1)][1]


DEFAULT_LINES = 200
MAX_LINES = 100_000


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--rank", metavar="RANKS", help="Only these ranks, for example 3,5-7.")
@click.option(
    "--node",
    metavar="NODES",
    shell_complete=complete_nodes,
    help="Only ranks on these nodes, for example n2 or gpu[01-04].",
)
@click.option("--grep", "pattern", metavar="REGEX", help="Only lines that match REGEX; (?i) ignores case.")
@click.option(
    "--since", metavar="TIME", help="Only lines from the last 10m, 2h, …; for a finished run, counted from its end."
)
@click.option("--stream", type=click.Choice(STREAMS), help="Only this stream.")
@click.option(
    "-n",
    "--lines",
    metavar="N|all",
    help=f"The last N lines; default: {DEFAULT_LINES}, unless --since or --raw is given.",
)
@click.option("--script", "of_script", is_flag=True, help="The output of the script that started the launcher instead.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until the run ends.")
@click.option("--no-fold", is_flag=True, help="Print every rank's line, even if many ranks print the same line.")
@click.option(
    "--raw", "as_raw", is_flag=True, help="Print the bytes as the ranks wrote them, without times, names or folding."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each line of output.")
def logs(
    run: str | None,
    rank: str | None,
    node: str | None,
    pattern: str | None,
    since: str | None,
    stream: str | None,
    lines: str | None,
    of_script: bool,
    follow: bool,
    no_fold: bool,
    as_raw: bool,
    as_json: bool,
) -> None:
    """Show the output of a run's ranks, merged by time.

    RUN is a run's name or a prefix of it; the default is the latest run.

    Equal lines from several ranks within two seconds are shown once: [ranks 0-7,9 ×9]. A ≈ means that the lines differ
    only in numbers; the earliest is shown. Dropped output is reported where it is missing. Without -n, only the last
    100,000 lines are read.
    """
    if as_raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")
    selection = LineSelection(
        ranks=None if rank is None else parse_ranks(rank),
        nodes=None if node is None else frozenset(expand_node_set(node, where="--node")),
        stream=stream,
        grep=None if pattern is None else _compile_pattern(pattern),
    )
    default = None if since is not None or as_raw else DEFAULT_LINES
    query = LogQuery(
        selection=selection,
        last=default if lines is None else _parse_count(lines),
        most=MAX_LINES if lines is None else None,
        back=None if since is None else parse_duration(since, where="--since"),
        follow=follow,
        folded=not (no_fold or as_raw or of_script),
        of_script=of_script,
    )
    run_directory = Runs.of(os.environ).find(run)
    forward_to_batch_host(run_directory, run)
    if sys.stderr.isatty():
        click.secho(f"{run_directory.id}, {run_directory.state.value}", err=True, dim=True)
    # Whoever asks for N lines knows that there are more.
    noting = {"note": partial(click.secho, err=True, dim=True)} if lines is None else {}
    log_lines = read_logs(run_directory, query, now=time(), **noting)
    find_attempt = AttemptTimes(run_directory.events).find_attempt
    with end_at_closed_pipe():
        if as_json:
            _print_entries(log_lines, find_attempt, of_script=of_script)
        else:
            formatter = LogLineFormatter(styled=sys.stdout.isatty(), find_attempt=find_attempt, of_script=of_script)
            _print_lines(log_lines, formatter, as_raw=as_raw, follow=follow)


def _print_entries(
    log_lines: Iterable[FoldedLine], find_attempt: Callable[[float], int | None], *, of_script: bool
) -> None:
    for folded in log_lines:
        for entry in list_entries(folded, find_attempt(folded.line.at), of_script=of_script):
            click.echo(dump_json(entry, lines=True))


def _print_lines(log_lines: Iterable[FoldedLine], lines: LogLineFormatter, *, as_raw: bool, follow: bool) -> None:
    out = sys.stdout.buffer
    missing = 0
    for each in log_lines:
        if as_raw:
            missing += each.line.missing
            out.write(format_raw(each.line))
        else:
            out.writelines(f"{line}\n".encode("utf-8", "replace") for line in lines.text(each))
        if follow:
            out.flush()
    out.flush()
    if missing:
        click.echo(f"{missing} bytes are missing; run without --raw to see where and why", err=True)


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        seen = f"'{escape_text(pattern)}' is not a valid regular expression: {error}"
        raise InputError.of(commands.LOGS_GREP, "--grep", seen, pattern=re.escape(pattern)) from None


def _parse_count(text: str) -> int | None:
    if text == "all":
        return None
    if text.isdecimal() and int(text):
        return int(text)
    seen = f"'{escape_text(text)}' is not a number of lines"
    raise InputError.of(commands.LOGS_LINES, "-n", seen)
