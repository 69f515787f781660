"""Reads logs line by line; memory is bounded by messages and ranks, not by the size of the log."""

import re
from collections import deque
from collections.abc import Mapping
from itertools import islice

from aboard.core.evidence.nccl_ras import RAS_HEADING, RasReading
from aboard.diagnoses.catalogue import KnownMessage, list_output_patterns
from aboard.diagnoses.output_patterns import PatternRole, PatternSource, cause, end
from aboard.diagnoses.runs import death
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.logs.line_filter import CLOSES, GROWS, STEP, WORTH, LineFilter, is_closing_line
from aboard.doctor.logs.line_prefixes import (
    LogNodeIndex,
    ParsedLogLine,
    parse_file_name,
    parse_log_line,
    split_terminal_line,
)
from aboard.doctor.logs.nccl_log import NcclLogSummary
from aboard.doctor.logs.pattern_keywords import WordIndex, extract_keywords
from aboard.doctor.logs.sighting import ScannedLog, Sighting
from aboard.doctor.logs.timestamps import parse_timestamp
from aboard.doctor.logs.tracebacks import LoggedException, TracebackParser
from aboard.doctor.logs.trouble import Trouble, rank_troubles, thin_out, weigh_trouble
from aboard.doctor.shared.nccl_lines import parse_nccl_line, parse_version

LINE_LIMIT = 16_384
_SHOWN = 400
_MOST_OF_GROUP = 1_000
_MOST_SIGHTINGS = 20_000
_MOST_SHAPES = 50_000
_BEFORE = 5
_LAST_LINES = 20
_PASSED_ON = ("container-not-started", "run-exited", "run-followed")
# A run that printed this many lines of progress after an error survived it; buffers delay fewer.
SURVIVED = 100
_DIGITS = re.compile(r"\d+")
_RECENT = 40
# torchrun's summary of a failure, one field a line.
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode)\s+: (\S{1,255})(?: \((?:local_rank|pid): (\d+)\))?")
# NCCL logs each connection attempt as INFO; the last one is fatal.
_LAST_TRY = re.compile(r"retrying \((\d+)/\1\)")
# What a program says of an error that it handles.
_HANDLED = re.compile(r"\b[Rr]etrying\b|\bwill retry\b|\b[Ff]alling back\b|\b[Ss]kipping\b")
# Times, ports and process numbers. Short ones decide: errno 111 or 113, Xid 79 or 48, try 34 of 34.
_LONG_NUMBER = re.compile(r"\d{4,}|(?<=\d\d:\d\d:)\d\d")

RAISED = (
    death.RAISED,
    cause(r"", "The rank's own code raised an exception that nothing caught.", fix="trial", weight=1),
)
# Of torchrun's summary: another failure, and the one that it saw first.
SUMMED_UP = tuple(
    (death.EXITED, end(r"", "The launcher reports that a rank exited, but not why.", fix="output", weight=weight))
    for weight in (2, 3)
)
SUMMED_UP_KILLED = tuple((death.KILLED, end(r"", fix="memory", weight=weight)) for weight in (2, 3))
_WRAPPERS = (
    *("CheckpointException", "torch.distributed.elastic", "ChildFailedError"),
    *("CalledProcessError", "SignalException", "DistBackendError"),
)


class LogScanner:
    """Feed it files by name and lines as bytes; `reading` is what it knows so far."""

    def __init__(self, *, all_lines: bool = False) -> None:
        self._messages = list_output_patterns(PatternSource.LOG)
        self._by_word: dict[str, list[int]] = {"": []}
        for number, (_, message) in enumerate(self._messages):
            for word in extract_keywords(message.pattern) or ("",):
                self._by_word.setdefault(word, []).append(number)
        self._words = WordIndex(self._by_word)
        self._all_lines = all_lines
        self._files: list[str] = []
        self._lines = self._number = self._progress = 0
        self._filter = LineFilter()
        self._recent: deque[bytes] = deque(maxlen=_RECENT)
        # How many lines were kept, how many of them were searched for a time, and the last time with its line.
        self._kept = self._searched = 0
        self._time: tuple[float | None, int] = (None, 0)
        self._seen: dict[tuple[object, ...], Sighting] = {}
        # By the hashes of shapes, which may have 16 KB each.
        self._fitting: dict[int, tuple[KnownMessage, ...]] = {}
        self._troubles: dict[int, Trouble] = {}
        self._weights: dict[int, int] = {}
        self._moves = self._moved = self._closed = 0
        self._moved_line = self._first = b""
        self._to_the_end = False
        self._traces = TracebackParser()
        self._index = LogNodeIndex()
        self._nccl = NcclLogSummary()
        self._ras = RasReading()
        self._in_ras = False
        self._block: dict[str, str] = {}
        self._root_cause = False
        self._of_file: tuple[str, int | None] = ("", None)
        self._last = b""

    def begin(self, name: str) -> None:
        """Starts a file: the following lines belong to it."""
        self._files.append(name)
        self._number = 0
        self._recent.clear()
        self._time = (None, 0)
        self._traces = TracebackParser()
        self._block = {}
        self._root_cause = False
        self._of_file = parse_file_name(name)

    def take(self, line: bytes) -> None:
        self._lines += 1
        self._number += 1
        self._first = self._first or line
        self._last = line or self._last
        if self._in_ras or line[:1] == b"#":
            self._take_ras_line(line[:LINE_LIMIT].decode("utf-8", "replace").rstrip())
        kind = self._filter.kind(line)
        if kind & (STEP | GROWS):
            self._progress += kind & STEP
            self._moves += 1
            self._moved, self._moved_line = self._lines, line
        if kind & CLOSES and any(map(is_closing_line, split_terminal_line(line[:LINE_LIMIT]))):
            self._closed = self._lines
        if not kind & WORTH and not (self._traces.waiting or self._block or self._all_lines):
            if not kind & (STEP | GROWS) or self._number % 16 == 0:
                self._keep(line)
            return
        for text in split_terminal_line(line[:LINE_LIMIT]):
            self._parse_line(text)
        self._keep(line)

    def reading(self) -> ScannedLog:
        return ScannedLog(
            files=tuple(self._files),
            lines=self._lines,
            sightings=list(self._seen.values()),
            nccl=self._nccl,
            ras=tuple(self._ras.comms()),
            troubles=rank_troubles(
                self._troubles.values(),
                lines=self._lines,
                closed_at=self._closed,
                moved_at=self._moved,
                moves=self._moves,
                survived=SURVIVED,
            ),
            closed=self._closed > 0,
            moving=self._is_moving(),
            progress=self._progress,
            moves=self._moves,
            moved_at=_parse_time(self._moved_line),
            by_address=self._index.by_address,
            by_rank=self._index.by_rank,
            last=tuple(Untrusted(text[:_SHOWN]) for text in split_terminal_line(self._last[:LINE_LIMIT])[-1:]),
        )

    def _parse_line(self, line: str) -> None:
        parsed = parse_log_line(line)
        self._index.add_prefix(parsed)
        if "NCCL" in line:
            self._take_nccl_line(line, parsed)
            if " NCCL INFO Channel " in line:
                return
        if parsed.rank is not None and ("WorkNCCL(" in line or "last enqueued" in line):
            self._nccl.add_watchdog_line(parsed.rank, line)
        if self._take_summary_line(parsed):
            return
        raised = self._traces.take(parsed.source, parsed.text)
        text = raised.text if raised else parsed.text
        for known in self._match_messages(text):
            found = known[1].regex.search(text)
            if found:
                self._record_sighting(known, found, parsed, text, raised)
                # Such a message is often only passed on: what it says inside is worth a quote.
                if known[0].code in _PASSED_ON:
                    self._note_trouble(parsed, line)
                return
        if not (raised and self._record_exception(raised, parsed)):
            self._note_trouble(parsed, line)

    def _take_ras_line(self, text: str) -> None:
        """Keeps the part of a RAS report that a heading of a communicator begins."""
        self._in_ras = text.startswith(" ") or RAS_HEADING.match(text) is not None
        if self._in_ras:
            self._ras.take(text)

    def _note_trouble(self, parsed: ParsedLogLine, line: str) -> None:
        """Keeps a line that looks like trouble and matches no message."""
        shape = hash(_DIGITS.sub("0", line))
        known = self._troubles.get(shape)
        if known is not None:
            known.count, known.last_at, known.moves = known.count + 1, self._lines, self._moves
            return
        weight = self._weights.get(shape)
        if weight is None:
            if len(self._weights) >= _MOST_SHAPES:
                self._weights.clear()
            weight = self._weights[shape] = weigh_trouble(parsed, line)
        if not weight:
            return
        thin_out(self._troubles)
        node, rank = self._find_source(parsed, {})
        recent = list(self._recent)[-_BEFORE:]
        before = [text.rstrip() for each in recent for text in split_terminal_line(each[:LINE_LIMIT])]
        self._troubles[shape] = Trouble(
            text=Untrusted(parsed.text.strip()[:_SHOWN]),
            weight=weight,
            file=len(self._files),
            line=self._number,
            at=parsed.at if parsed.at is not None else self._find_previous_time(),
            node=node,
            rank=rank,
            before=tuple(Untrusted(text[:_SHOWN]) for text in before[-_BEFORE:]),
            seen_at=self._lines,
            last_at=self._lines,
            moves=self._moves,
            first_moves=self._moves,
        )

    def _is_moving(self) -> bool:
        """Whether the last progress is within the last tenth of the lines or of the time."""
        if not self._moved:
            return False
        if self._lines - self._moved <= max(_LAST_LINES, self._lines // 10):
            return True
        ends = (self._first, self._moved_line, self._last)
        first, moved, last = map(_parse_time, ends)
        return first is not None and moved is not None and last is not None and last - moved <= (last - first) / 10

    def _match_messages(self, text: str) -> tuple[KnownMessage, ...]:
        """The messages that match lines of this shape, cached: a flood of errors is mostly one line."""
        shape = hash(_LONG_NUMBER.sub("0", text))
        known = self._fitting.get(shape)
        if known is None:
            near = {number for word in ("", *self._words.find(text.lower())) for number in self._by_word[word]}
            messages = [self._messages[number] for number in sorted(near)]
            known = tuple(message for message in messages if message[1].regex.search(text))
            if len(self._fitting) >= _MOST_SHAPES:
                self._fitting.clear()
            self._fitting[shape] = known
        return known

    def _take_nccl_line(self, line: str, parsed: ParsedLogLine) -> None:
        own = parse_nccl_line(line)
        if own is None:
            self._nccl.version = parse_version(line) or self._nccl.version
            return
        self._nccl.take(own)
        self._index.add_nccl_line(own, self._nccl)
        parsed.node, parsed.pid = own.host, own.pid
        parsed.level = "I" if own.level == "INFO" and not _LAST_TRY.search(line) else ""
        known = self._nccl.ranks.get((own.host, own.pid))
        if parsed.rank is None and known is not None:
            parsed.rank = known.rank

    def _take_summary_line(self, parsed: ParsedLogLine) -> bool:
        """Parses the fields of torchrun's summary, the best source for the host and rank of a failure."""
        found = _FIELD.match(parsed.text)
        if found is None:
            if "first observed failure" in parsed.text:
                self._root_cause = True
            return False
        name, value = found[1], found[2]
        if name == "time":
            self._block = {"time": value.replace("_", " ")}
        elif self._block:
            self._block[name] = value
            if name == "exitcode":
                self._record_summary()
        return True

    def _record_summary(self) -> None:
        block, self._block = self._block, {}
        code = block["exitcode"]
        rank = _parse_number({"rank": Untrusted(block.get("rank", ""))}, "rank", None)
        source = ParsedLogLine(text="", node=block.get("host", ""), rank=rank, at=parse_timestamp(block["time"]))
        self._index.add_prefix(source)
        known = (SUMMED_UP_KILLED if code.startswith("-") else SUMMED_UP)[self._root_cause]
        self._root_cause = False
        match = re.match(r"(?P<code>.*)", code)
        if match:
            self._record_sighting(known, match, source, f"torchrun: rank {rank} on {source.node} exitcode {code}", None)

    def _record_exception(self, exception: LoggedException, parsed: ParsedLogLine) -> bool:
        match = re.match(r"(?P<type>[\w.]+)", exception.text)
        if match is None or any(name in exception.text for name in _WRAPPERS):
            return False
        self._record_sighting(RAISED, match, parsed, exception.text, exception)
        return True

    def _record_sighting(
        self,
        known: KnownMessage,
        found: re.Match[str],
        parsed: ParsedLogLine,
        text: str,
        exception: LoggedException | None,
    ) -> None:
        diagnosis, message = known
        groups = {
            name.rstrip("234"): Untrusted(value[:_MOST_OF_GROUP]) for name, value in found.groupdict().items() if value
        }
        node, rank = self._find_source(parsed, groups)
        handled = _HANDLED.search(text) is not None and not _LAST_TRY.search(text)
        mild = (parsed.mild or handled) and message.role in (PatternRole.CAUSE, PatternRole.WAIT, PatternRole.ECHO)
        key = (id(message), node, rank, mild, len(self._files))
        before = self._seen.get(key)
        if before is not None:
            before.count += 1
            if message.role is PatternRole.HINT:
                before.groups, before.text = groups, Untrusted(text[:_SHOWN])
            return
        if len(self._seen) >= _MOST_SIGHTINGS:
            return
        self._seen[key] = Sighting(
            diagnosis=diagnosis,
            message=message,
            file=len(self._files),
            line=self._number,
            at=parsed.at if parsed.at is not None else self._find_previous_time(),
            text=Untrusted(text[:_SHOWN]),
            node=node,
            rank=rank,
            local=parsed.local,
            groups=groups,
            mild=mild,
            progress=self._progress,
            moves=self._moves,
            frame=Untrusted(exception.frame) if exception else NO_TEXT,
        )

    def _find_source(self, parsed: ParsedLogLine, groups: dict[str, Untrusted]) -> tuple[str, int | None]:
        rank = _parse_number(groups, "rank", parsed.rank)
        if rank is None and parsed.task is not None and parsed.local is None:
            rank = parsed.task
        if rank is None:
            rank = self._of_file[1]
        pid = _parse_number(groups, "pid", parsed.pid)
        node = groups.get("node", NO_TEXT).visible() or parsed.node or self._index.by_pid.get(pid or -1, "")
        if not node and rank is not None:
            node = self._index.by_rank.get(rank, "")
        if rank is None and pid is not None:
            rank = self._index.rank_of_pid.get((node, pid))
        return self._index.node(node) or self._of_file[0], rank

    def _find_previous_time(self) -> float | None:
        """The time of the nearest line before that has one; each line is searched once."""
        newer = min(self._kept - self._searched, len(self._recent))
        for age, line in enumerate(islice(reversed(self._recent), newer)):
            at = _parse_time(line)
            if at is not None:
                self._time = (at, self._kept - age)
                break
        self._searched = self._kept
        at, place = self._time
        return at if self._kept - place < _RECENT else None

    def _keep(self, line: bytes) -> None:
        self._recent.append(line)
        self._kept += 1


def _parse_time(line: bytes) -> float | None:
    return parse_timestamp(line[:200].decode("utf-8", "replace"))


def _parse_number(groups: Mapping[str, Untrusted], name: str, otherwise: int | None) -> int | None:
    found = groups.get(name, NO_TEXT).match(r"^\d{1,9}$")
    return int(found[0]) if found else otherwise
