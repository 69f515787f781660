"""Reads logs line by line and keeps what matters: bounded by messages and ranks, not by the size of the log."""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from aboard.diagnoses import Diagnosis, death
from aboard.diagnoses.catalogue import all_messages
from aboard.diagnoses.messages import Message, Role, Source, cause, end
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy import dataclass
from aboard.verdicts.logs.needles import needles
from aboard.verdicts.logs.said import Said, plain, said
from aboard.verdicts.logs.sighting import Reading, Sighting
from aboard.verdicts.logs.stamp import stamp_of
from aboard.verdicts.logs.tracebacks import Raised, Tracebacks, looks_raised
from aboard.verdicts.logs.trigger import DULL, PROGRESS, WORTH, Trigger
from aboard.verdicts.nccl import NcclLine, NcclLog, nccl_line

LINE_LIMIT = 65_536
_SHOWN = 400
_MOST_SIGHTINGS = 20_000
_MOST_SHAPES = 50_000
_UNKNOWN = 5
_RECENT = 40
# torchrun's summary of a failure, one field a line.
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode)\s+: (\S+)(?: \((?:local_rank|pid): (\d+)\))?")
# NCCL tells each try to connect as an information; the last one is the end.
_LAST_TRY = re.compile(r"retrying \((\d+)/\1\)")
# Times, ports and process numbers. Short ones decide: errno 111 or 113, Xid 79 or 48, try 34 of 34.
_LONG_NUMBER = re.compile(r"\d{4,}|(?<=\d\d:\d\d:)\d\d")

Known: TypeAlias = tuple[Diagnosis, Message]

RAISED = (death.RAISED, cause(r"", "Its own code raised, and nobody caught it.", fix="trial", weight=1))
# Of torchrun's summary: another failure, and the one that it saw first.
SUMMED_UP = tuple(
    (death.EXITED, end(r"", "The launcher tells that a rank ended, not why.", fix="output", weight=weight))
    for weight in (2, 3)
)
SUMMED_UP_KILLED = tuple((death.KILLED, end(r"", fix="memory", weight=weight)) for weight in (2, 3))
_WRAPPERS = (
    "CheckpointException",
    "torch.distributed.elastic",
    "ChildFailedError",
    "CalledProcessError",
    "SignalException",
    "DistBackendError",
)


class Reader:
    """Feed it files by name and lines as bytes; `reading` is what it knows so far."""

    def __init__(self, *, all_lines: bool = False) -> None:
        self._messages = all_messages(Source.LOG)
        self._words = [
            (word, number)
            for number, (_, message) in enumerate(self._messages)
            for word in needles(message.pattern) or ("",)
        ]
        self._all_lines = all_lines
        self._files: list[str] = []
        self._lines = self._number = self._progress = 0
        self._trigger = Trigger()
        self._recent: deque[bytes] = deque(maxlen=_RECENT)
        self._seen: dict[tuple[object, ...], Sighting] = {}
        self._fitting: dict[str, tuple[Known, ...]] = {}
        self._unknown: deque[Untrusted] = deque(maxlen=_UNKNOWN)
        self._traces = Tracebacks()
        self._roster = Roster()
        self._nccl = NcclLog()
        self._block: dict[str, str] = {}
        self._root_cause = False
        self._of_file: tuple[str, int | None] = ("", None)
        self._last = b""

    def begin(self, name: str) -> None:
        """The lines that follow are of this file."""
        self._files.append(name)
        self._number = 0
        self._recent.clear()
        self._traces = Tracebacks()
        self._block = {}
        self._root_cause = False
        self._of_file = of_file(name)

    def take(self, line: bytes) -> None:
        self._lines += 1
        self._number += 1
        self._last = line or self._last
        kind = self._trigger.kind(line)
        if kind & PROGRESS:
            self._progress += 1
        if not kind & WORTH and not (self._traces.waiting or self._block or self._all_lines):
            if kind == DULL or self._number % 16 == 0:
                self._recent.append(line)
            return
        for text in plain(line[:LINE_LIMIT]):
            self._look(text)
        self._recent.append(line)

    def reading(self) -> Reading:
        return Reading(
            files=tuple(self._files),
            lines=self._lines,
            sightings=list(self._seen.values()),
            nccl=self._nccl,
            unknown=list(self._unknown),
            progress=self._progress,
            by_address=self._roster.by_address,
            by_rank=self._roster.by_rank,
            last=tuple(Untrusted(text[:_SHOWN]) for text in plain(self._last[:LINE_LIMIT])[-1:]),
        )

    def _look(self, line: str) -> None:
        told = said(line)
        self._roster.told(told)
        if "NCCL" in line:
            self._nccl_line(line, told)
        if told.rank is not None and ("WorkNCCL(" in line or "last enqueued" in line):
            self._nccl.watched(told.rank, line)
        if self._summary(told):
            return
        raised = self._traces.take(told.source, told.text)
        text = raised.text if raised else told.text
        for known in self._fits(text):
            found = known[1].regex.search(text)
            if found:
                self._see(known, found, told, text, raised)
                return
        if raised:
            self._raised(raised, told)
        elif not told.mild and looks_raised(told.text):
            self._unknown.append(Untrusted(told.text[:_SHOWN]))

    def _fits(self, text: str) -> tuple[Known, ...]:
        """The messages that fit lines of this shape, remembered: a flood of errors is mostly one line."""
        shape = _LONG_NUMBER.sub("0", text)
        known = self._fitting.get(shape)
        if known is None:
            near = dict.fromkeys([number for word, number in self._words if word in text])
            known = tuple(self._messages[number] for number in near if self._messages[number][1].regex.search(text))
            if len(self._fitting) >= _MOST_SHAPES:
                self._fitting.clear()
            self._fitting[shape] = known
        return known

    def _nccl_line(self, line: str, told: Said) -> None:
        own = nccl_line(line)
        if own is None:
            return
        self._nccl.take(own)
        self._roster.nccl(own, self._nccl)
        told.node, told.pid = own.host, own.pid
        told.level = "I" if own.level == "INFO" and not _LAST_TRY.search(line) else ""
        known = self._nccl.ranks.get((own.host, own.pid))
        if told.rank is None and known is not None:
            told.rank = known.rank

    def _summary(self, told: Said) -> bool:
        """The fields of torchrun's summary: the host and rank of a failure, better known there than anywhere."""
        found = _FIELD.match(told.text)
        if found is None:
            if "first observed failure" in told.text:
                self._root_cause = True
            return False
        name, value = found[1], found[2]
        if name == "time":
            self._block = {"time": value.replace("_", " ")}
        elif self._block:
            self._block[name] = value
            if name == "exitcode":
                self._ended()
        return True

    def _ended(self) -> None:
        block, self._block = self._block, {}
        code = block["exitcode"]
        rank = int(block["rank"]) if block.get("rank", "").isdecimal() else None
        speaker = Said(text="", node=block.get("host", ""), rank=rank, at=stamp_of(block["time"]))
        self._roster.told(speaker)
        known = (SUMMED_UP_KILLED if code.startswith("-") else SUMMED_UP)[self._root_cause]
        self._root_cause = False
        match = re.match(r"(?P<code>.*)", code)
        if match:
            self._see(known, match, speaker, f"torchrun: rank {rank} on {speaker.node} exitcode {code}", None)

    def _raised(self, raised: Raised, told: Said) -> None:
        if any(name in raised.text for name in _WRAPPERS):
            return
        match = re.match(r"(?P<type>[\w.]+)", raised.text)
        if match:
            self._see(RAISED, match, told, raised.text, raised)

    def _see(self, known: Known, found: re.Match[str], told: Said, text: str, raised: Raised | None) -> None:
        diagnosis, message = known
        groups = {name.rstrip("234"): Untrusted(value) for name, value in found.groupdict().items() if value}
        node, rank = self._who(told, groups)
        mild = told.mild and message.role in (Role.CAUSE, Role.WAIT, Role.ECHO)
        key = (id(message), node, rank, mild, len(self._files))
        before = self._seen.get(key)
        if before is not None:
            before.count += 1
            if message.role is Role.HINT:
                before.groups, before.text = groups, Untrusted(text[:_SHOWN])
            return
        if len(self._seen) >= _MOST_SIGHTINGS:
            return
        self._seen[key] = Sighting(
            diagnosis=diagnosis,
            message=message,
            file=len(self._files),
            line=self._number,
            at=told.at if told.at is not None else self._carried(),
            text=Untrusted(text[:_SHOWN]),
            node=node,
            rank=rank,
            local=told.local,
            groups=groups,
            mild=mild,
            progress=self._progress,
            frame=Untrusted(raised.frame) if raised else NO_TEXT,
        )

    def _who(self, told: Said, groups: dict[str, Untrusted]) -> tuple[str, int | None]:
        rank = _number(groups, "rank", told.rank)
        if rank is None and told.task is not None and told.local is None:
            rank = told.task
        if rank is None:
            rank = self._of_file[1]
        pid = _number(groups, "pid", told.pid)
        node = groups.get("node", NO_TEXT).visible() or told.node or self._roster.by_pid.get(pid or -1, "")
        if not node and rank is not None:
            node = self._roster.by_rank.get(rank, "")
        if rank is None and pid is not None:
            rank = self._roster.rank_of_pid.get((node, pid))
        return self._roster.node(node) or self._of_file[0], rank

    def _carried(self) -> float | None:
        """The time of the nearest line before that has one."""
        for line in reversed(self._recent):
            at = stamp_of(line[:200].decode("utf-8", "replace"))
            if at is not None:
                return at
        return None


def _number(groups: Mapping[str, Untrusted], name: str, otherwise: int | None) -> int | None:
    found = groups.get(name, NO_TEXT).match(r"^\d{1,9}$")
    return int(found[0]) if found else otherwise


_MOST = 200_000
# A log of one node or one rank mostly says so in its name: gpu07.log, rank_3.txt, nccl.gpu07.4711.
_FILE_RANK = re.compile(r"(?:^|[._-])rank[._-]?(\d+)(?=[._-]|$)")
_FILE_NODE = re.compile(r"(?:^|[._-])((?:gpu|node|host|worker|compute|cn|dgx|n)[A-Za-z]*-?\d+)(?=[._-]|$)")


@dataclass(kw_only=True)
class Roster:
    """Learns from lines; bounded."""

    by_address: dict[str, str] = field(default_factory=dict)
    by_pid: dict[int, str] = field(default_factory=dict)
    by_rank: dict[int, str] = field(default_factory=dict)
    rank_of_pid: dict[tuple[str, int], int] = field(default_factory=dict)

    def nccl(self, line: NcclLine, log: NcclLog) -> None:
        """NCCL's prefix has the host and the process, and its lines the address and the rank."""
        known = log.ranks.get((line.host, line.pid))
        if known is None or len(self.by_pid) >= _MOST:
            return
        self.by_pid[line.pid] = line.host
        if known.address:
            self.by_address[known.address] = line.host
        if known.rank is not None:
            self.by_rank[known.rank] = line.host
            self.rank_of_pid[line.host, line.pid] = known.rank

    def told(self, said: Said) -> None:
        """A prefix that names both ties them together."""
        if said.node and said.rank is not None and len(self.by_rank) < _MOST:
            self.by_rank.setdefault(said.rank, said.node)

    def node(self, name: str) -> str:
        """The node's own name for an address, where a line told it."""
        return self.by_address.get(name, name)


def of_file(name: str) -> tuple[str, int | None]:
    """The node and the rank that a file's name tells of."""
    base = name.rpartition("/")[2]
    node, rank = _FILE_NODE.search(base), _FILE_RANK.search(base)
    return (node[1] if node else ""), (int(rank[1]) if rank else None)
