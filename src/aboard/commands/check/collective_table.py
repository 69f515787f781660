"""The collectives of a check by size: time, algorithm and bus bandwidth, as in nccl-tests."""

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.core.probes.facts import Facts
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.durations import format_latency
from aboard.core.text.input_text import format_count
from aboard.doctor.collective.multi_node_probe import COLLECTIVE, CollectiveResult
from aboard.doctor.collective.rank_report import OPS, BandwidthRow

_SIZE, _COLUMN, _GAP = 8, 9, 2
_HEADS = ("time", "algbw", "busbw")
_UNITS = ("", "(GB/s)", "(GB/s)")
_NAMES = {op: op.replace("_", "-") for op in OPS}


class CollectiveTable:
    """One row per size, the collectives side by side if they fit; empty if none was run."""

    def __init__(self, facts: Facts) -> None:
        outcome = COLLECTIVE.outcome(facts)
        self._outcome = outcome if isinstance(outcome, CollectiveResult) and outcome.rows else None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._outcome is None:
            return
        every = [[row for row in self._outcome.rows if row.op == op] for op in OPS]
        lists = [rows for rows in every if rows]
        one = len(_HEADS) * _COLUMN + _GAP
        beside = _SIZE + len(lists) * one <= options.max_width
        yield _render_line(format_heading(self._outcome))
        for group in [lists] if beside else [[each] for each in lists]:
            yield from _render_block(group)
        yield ""


def format_heading(outcome: CollectiveResult) -> str:
    """The number of ranks, the backend and the torch version."""
    size = f"{format_count(outcome.ranks, 'rank')} on {format_count(len(outcome.nodes), 'node')}"
    return f"collective: {size}, {outcome.backend}, torch {outcome.torch}"


def format_collective_lines(facts: Facts) -> Iterator[str]:
    """The same as plain lines."""
    outcome = COLLECTIVE.outcome(facts)
    if isinstance(outcome, CollectiveResult) and outcome.rows:
        yield format_heading(outcome)
        for row in outcome.rows:
            figures = (
                f"{format_size(round_size(row.size))} {format_latency(row.seconds)} {row.algorithm:.2f} GB/s, bus"
                f" {row.bus:.2f} GB/s"
            )
            yield f"collective {row.op} {figures}"


def round_size(count: int) -> int:
    """The requested power of two; the measured size is a little less if ranks could not share it evenly."""
    whole = 1 << (count - 1).bit_length()
    return whole if count >= whole * 0.9 else count


def _render_block(lists: Sequence[Sequence[BandwidthRow]]) -> Iterator[Text]:
    ops = "".join(" " * _GAP + _NAMES[rows[0].op].rjust(len(_HEADS) * _COLUMN) for rows in lists)
    yield _render_line(" " * _SIZE + ops)
    for label, heads in (("size", _HEADS), ("", _UNITS)):
        columns = " " * _GAP + "".join(head.rjust(_COLUMN) for head in heads)
        yield _render_line(label.rjust(_SIZE) + columns * len(lists))
    for at in range(max(len(rows) for rows in lists)):
        there = [rows[at] if at < len(rows) else None for rows in lists]
        nominal = next(row.size for row in there if row is not None)
        yield Text(
            (
                format_size(round_size(nominal)).rjust(_SIZE)
                + "".join(" " * _GAP + _format_cells(row) for row in there)
            ).rstrip(),
            no_wrap=True,
            overflow="crop",
        )


def _format_cells(row: BandwidthRow | None) -> str:
    cells = ("", "", "") if row is None else (format_latency(row.seconds), f"{row.algorithm:.2f}", f"{row.bus:.2f}")
    return "".join(cell.rjust(_COLUMN) for cell in cells)


def _render_line(text: str) -> Text:
    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")
