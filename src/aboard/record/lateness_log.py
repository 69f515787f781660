"""The lateness of ranks on disk: every window at first, later ones merged, so that the file stays bounded for weeks."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from aboard.core.run.lateness import UNMEASURED, WINDOW_SECONDS, LatenessWindow, Ranges, RankLateness, merge_windows
from aboard.record.json_documents import MOST_RANKS
from aboard.record.json_lines_journal import Journal
from aboard.record.measurement_log import find_stage
from aboard.record.record_lines import RecordLines, as_count, as_number, as_text

LIMIT = 64 * 2**20
# Lateness is written in units of this many seconds.
UNIT = 1e-4
_MOST_GROUPS = 64


class LatenessLog:
    """One line per window; as the space fills up, one for 4, 16, … windows."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self._journal = Journal(path)
        self._limit = limit
        self._pending: LatenessWindow | None = None
        # The last window without any measurement: repeating it tells nothing.
        self._unmeasured: Mapping[str, Ranges] = {}
        self.past_limit = 0

    @property
    def dropped(self) -> int:
        """Lines lost to a full disk."""
        return self._journal.dropped

    def take(self, window: LatenessWindow) -> None:
        if not window.measured and window.unmeasured == self._unmeasured:
            return
        self._unmeasured = {} if window.measured else window.unmeasured
        if self._pending is not None and self._pending.generation != window.generation:
            self._write(self._pending)
            self._pending = None
        self._pending = window if self._pending is None else merge_windows(self._pending, window)
        stage = find_stage(self._journal.size / self._limit)
        if stage is None:
            self.past_limit += 1
            self._pending = None
        elif self._pending.seconds >= (4**stage - 0.5) * WINDOW_SECONDS:
            self._write(self._pending)
            self._pending = None

    def close(self) -> None:
        if self._pending is not None:
            self._write(self._pending)
            self._pending = None
        self._journal.close()

    def _write(self, window: LatenessWindow) -> None:
        late = {rank: late for rank, late in sorted(window.late.items()) if late.worst >= UNIT / 2}
        groups = sorted({late.group for late in late.values()})
        self._journal.append({
            "at": round(window.at, 3),
            "seconds": round(window.seconds, 1),
            "generation": window.generation,
            "count": window.count,
            "interval": float(f"{window.interval:.4g}"),
            "uncertainty": float(f"{window.uncertainty:.3g}"),
            "measured": window.measured,
            "unmeasured": window.unmeasured,
            "groups": groups,
            "ranks": list(late),
            "mean": [round(late.mean / UNIT) for late in late.values()],
            "worst": [round(late.worst / UNIT) for late in late.values()],
            "group": [groups.index(late.group) for late in late.values()] if len(groups) > 1 else [],
        })  # fmt: skip


def read_lateness(path: Path) -> RecordLines[LatenessWindow]:
    """The windows in order."""
    return RecordLines(path, _parse_window)


def _parse_window(entry: Mapping[str, Any]) -> LatenessWindow:
    ranks, mean, worst = (_parse_counts(entry[key]) for key in ("ranks", "mean", "worst"))
    groups = [as_text(name) for name in entry["groups"][:_MOST_GROUPS]]
    places = _parse_counts(entry["group"]) or [0] * len(ranks)
    if not len(ranks) == len(mean) == len(worst) == len(places) <= MOST_RANKS or max(ranks, default=0) >= MOST_RANKS:
        raise ValueError("columns of different lengths")
    names = map(groups.__getitem__, places)
    columns = zip([each * UNIT for each in mean], [each * UNIT for each in worst], names, strict=True)
    # Without a call of Python for each rank.
    late = map(partial(tuple.__new__, RankLateness), columns)
    return LatenessWindow(
        at=as_number(entry["at"]),
        seconds=as_number(entry["seconds"]),
        generation=as_count(entry["generation"]),
        count=as_count(entry["count"]),
        interval=as_number(entry["interval"]),
        uncertainty=as_number(entry["uncertainty"]),
        late=dict(zip(ranks, late, strict=True)),
        measured=_parse_ranges(entry["measured"]),
        unmeasured={
            name: _parse_ranges(entry["unmeasured"][name]) for name in UNMEASURED if name in entry["unmeasured"]
        },
    )


def _parse_counts(raw: Any) -> list[int]:
    if not isinstance(raw, list) or not {*map(type, raw)} <= {int} or min(raw, default=0) < 0:
        raise ValueError("expected counts")
    return raw


def _parse_ranges(raw: Any) -> Ranges:
    """Ascending and without overlaps, so that they can't be expanded to more than MOST_RANKS."""
    ranges = tuple((as_count(first), as_count(last)) for first, last in raw)
    ends = [-1, *(end for pair in ranges for end in pair)]
    if ends != sorted(ends) or ends[-1] >= MOST_RANKS:
        raise ValueError("ranks that can't be")
    return ranges
