"""The collectives of a check by size: time, algorithm and bus bandwidth, as nccl-tests prints them."""

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.checks.collective.exercise import COLLECTIVE, Collective
from aboard.checks.collective.report import OPS, Row
from aboard.core.duration import moment
from aboard.core.facts import Facts
from aboard.core.size import size
from aboard.core.words import many

_SIZE, _COLUMN, _GAP = 8, 9, 2
_HEADS = ("time", "algbw", "busbw")
_UNITS = ("", "(GB/s)", "(GB/s)")
_NAMES = {op: op.replace("_", "-") for op in OPS}


class CollectiveTable:
    """One row a size, both collectives side by side where there is room; nothing where none was held."""

    def __init__(self, facts: Facts) -> None:
        outcome = facts.outcome(COLLECTIVE)
        self._outcome = outcome if isinstance(outcome, Collective) and outcome.rows else None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._outcome is None:
            return
        every = [[row for row in self._outcome.rows if row.op == op] for op in OPS]
        lists = [rows for rows in every if rows]
        one = len(_HEADS) * _COLUMN + _GAP
        beside = _SIZE + len(lists) * one <= options.max_width
        yield _line(held(self._outcome))
        for group in [lists] if beside else [[each] for each in lists]:
            yield from _block(group)
        yield ""


def held(outcome: Collective) -> str:
    """Of how many ranks, and by what."""
    size = f"{many(outcome.ranks, 'rank')} on {many(len(outcome.nodes), 'node')}"
    return f"collective: {size}, {outcome.backend}, torch {outcome.torch}"


def collective_lines(facts: Facts) -> Iterator[str]:
    """The same as plain lines, each whole in itself."""
    outcome = facts.outcome(COLLECTIVE)
    if isinstance(outcome, Collective) and outcome.rows:
        yield held(outcome)
        for row in outcome.rows:
            told = f"{size(meant(row.size))} {moment(row.seconds)} {row.algorithm:.2f} GB/s, bus {row.bus:.2f} GB/s"
            yield f"collective {row.op} {told}"


def meant(count: int) -> int:
    """The power of two that was asked for; what ranks could not share evenly is a little less."""
    whole = 1 << (count - 1).bit_length()
    return whole if count >= whole * 0.9 else count


def _block(lists: Sequence[Sequence[Row]]) -> Iterator[Text]:
    ops = "".join(" " * _GAP + _NAMES[rows[0].op].rjust(len(_HEADS) * _COLUMN) for rows in lists)
    yield _line(" " * _SIZE + ops)
    for label, heads in (("size", _HEADS), ("", _UNITS)):
        columns = " " * _GAP + "".join(head.rjust(_COLUMN) for head in heads)
        yield _line(label.rjust(_SIZE) + columns * len(lists))
    for at in range(max(len(rows) for rows in lists)):
        there = [rows[at] if at < len(rows) else None for rows in lists]
        nominal = next(row.size for row in there if row is not None)
        yield Text(
            (size(meant(nominal)).rjust(_SIZE) + "".join(" " * _GAP + _cells(row) for row in there)).rstrip(),
            no_wrap=True,
            overflow="crop",
        )


def _cells(row: Row | None) -> str:
    words = ("", "", "") if row is None else (moment(row.seconds), f"{row.algorithm:.2f}", f"{row.bus:.2f}")
    return "".join(word.rjust(_COLUMN) for word in words)


def _line(text: str) -> Text:
    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")
