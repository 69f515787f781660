"""Parses the status text of NCCL's RAS: which processes are unreachable, lag behind or have errors.

NCCL 2.24 and later send the same text in reply to `VERBOSE STATUS`; the wording changed slightly in 2.26. (The JSON of
2.28 and later lists each rank of each communicator, which is too much for a large job.) Unknown lines are ignored,
since newer versions will add some.
"""

import re
from collections.abc import Iterator
from dataclasses import field

from aboard.lazy_dataclass import dataclass

# Entries kept of each kind; more add no information.
MAX_ENTRIES = 4096
MAX_TOPICS = 32


@dataclass(frozen=True, kw_only=True)
class RasProcess:
    """A process of the job: its pid, and the address of its node."""

    pid: int
    address: str


@dataclass(frozen=True, kw_only=True)
class RasRank:
    """A rank within one communicator, and its process if RAS reports it."""

    number: int
    process: RasProcess | None = None


@dataclass(frozen=True, kw_only=True)
class RasPart:
    """A number of ranks of a communicator with a common state; `ranks` lists them if they are the minority."""

    count: int
    what: str
    reached: int = 0
    ranks: tuple[RasRank, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RasComm:
    """One communicator that RAS reports on. `size` is None if its table wasn't parsed.

    `launched` has, for each kind of collective in which ranks differ, how far they are.
    """

    name: str
    size: int | None = None
    missing: int = 0
    missing_ranks: tuple[RasRank, ...] = ()
    failed: tuple[RasPart, ...] = ()
    launched: tuple[tuple[str, tuple[RasPart, ...]], ...] = ()
    states: tuple[RasPart, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RasStatus:
    """One reply. `silent` processes missed RAS's timeout, `dead` ones were silent for a minute; counts cover all."""

    version: str = ""
    processes: int | None = None
    comms: int = 0
    silent_count: int = 0
    silent: tuple[RasProcess, ...] = ()
    dead_count: int = 0
    dead: tuple[RasProcess, ...] = ()
    odd: tuple[RasComm, ...] = ()


def parse_ras_status(text: str) -> RasStatus | None:
    """Parses RAS's reply; None if it isn't one, or is cut off before its last section."""
    if not _is_complete(text):
        return None
    version = _VERSION.search(text)
    groups = {int(found["group"]): found for found in _GROUP.finditer(text)}
    reading = RasReading(sizes={number: int(found["size"]) for number, found in groups.items()})
    for line in text.splitlines():
        reading.take(line)
    return RasStatus(
        version=version[1] if version else "",
        processes=_parse_process_count(text),
        comms=sum(int(found["comms"]) for found in groups.values()),
        silent_count=reading.counts["INCOMPLETE"],
        silent=tuple(reading.processes["INCOMPLETE"]),
        dead_count=reading.counts["DEAD"],
        dead=tuple(reading.processes["DEAD"]),
        odd=tuple(reading.comms()),
    )


_NUMBER = r"\d{1,9}"
_ADDRESS = r"[\w.:%-]{1,80}"
# A reply starts with the first of these and has the others in this order; the last heading is always present.
_MARKS = ("NCCL version ", "\nJob summary\n", "\nCommunicators...", "\nErrors\n", "\nWarnings\n")
_VERSION = re.compile(r"^\s*NCCL version ([\w.+-]{1,40})", re.MULTILINE)
_TOTAL = re.compile(rf"^ *({_NUMBER}) +({_NUMBER}) +({_NUMBER})(?: +({_NUMBER}) +({_NUMBER}))? *$", re.MULTILINE)
_GROUP = re.compile(
    rf"^ *(?P<group>{_NUMBER}) +(?P<comms>{_NUMBER}) +{_NUMBER} +[\d-]{{1,19}} +(?P<size>{_NUMBER}) +{_NUMBER}"
    r" +[A-Z]{1,20} +[A-Z,]{1,60} *$",
    re.MULTILINE,
)
RAS_HEADING = re.compile(rf"#(?P<group>{_NUMBER})-(?P<number>{_NUMBER}) \([0-9a-f]{{1,16}}\) (?P<kind>[A-Z]{{1,20}})")
_JOB = re.compile(rf"  (?:Missing communicator data from )?({_NUMBER}) job process")
_PROCESS = re.compile(rf"  Process (?P<pid>{_NUMBER}) on node (?P<address>{_ADDRESS}) managing GPU")
_MISSING = re.compile(rf"  Missing communicator data from ({_NUMBER}) rank")
_MISSING_RANKS = re.compile(r"  The missing ranks?: ([\d, ]{1,4000})")
_RANK = re.compile(
    rf"  Rank (?P<rank>{_NUMBER})(?P<what> [a-z][^-]{{1,80}}?)? -- "
    rf"(?:GPU .{{1,40}}? managed by process (?P<pid>{_NUMBER}) on node (?P<address>{_ADDRESS})|\[process)"
)
_RANKS = re.compile(rf"  (?P<count>{_NUMBER}) ranks (?P<what>(?:have|reported) .{{1,80}})")
_DIFFER = re.compile(r"  Communicator ranks have different (?P<what>\w{1,40} operation counts|status)")
_FAILED = re.compile(rf"  (?P<when>Initialization|Asynchronous) errors? on {_NUMBER} rank")
_REACHED = re.compile(r"launched up to operation (\d{1,15})|not launched any operations")
_STATE = re.compile(r"ha(?:s|ve) status ([A-Z]{1,20})")
_REPORTED = re.compile(r"reported ([\w ,.:;/'()-]{1,60})")


@dataclass(kw_only=True)
class _Comm:
    """One communicator during parsing; `topic` is the subject of its latest lines."""

    name: str
    size: int | None
    missing: int = 0
    missing_ranks: list[RasRank] = field(default_factory=list)
    parts: dict[str, list[RasPart]] = field(default_factory=dict)
    topic: str = ""

    def take(self, line: str) -> None:
        if found := _MISSING.match(line):
            self.missing, self.topic = int(found[1]), "missing"
        elif found := _MISSING_RANKS.match(line):
            numbers = re.findall(_NUMBER, found[1])[: MAX_ENTRIES - len(self.missing_ranks)]
            self.missing_ranks += [RasRank(number=int(word)) for word in numbers]
        elif found := _DIFFER.match(line):
            self.topic = found["what"].removesuffix(" operation counts")
        elif found := _FAILED.match(line):
            self.topic = "failed"
        elif found := _RANKS.match(line):
            self._part(int(found["count"]), found["what"], ())
        elif found := _RANK.match(line):
            self._rank(found)

    def _rank(self, found: re.Match[str]) -> None:
        process = RasProcess(pid=int(found["pid"]), address=found["address"]) if found["pid"] else None
        rank = RasRank(number=int(found["rank"]), process=process)
        parts = self.parts.get(self.topic, [])
        if self.topic == "missing":
            self.missing_ranks += [rank] if len(self.missing_ranks) < MAX_ENTRIES else []
        elif found["what"]:
            self._part(1, found["what"].strip(), (rank,))
        elif parts and len(parts[-1].ranks) < min(parts[-1].count, MAX_ENTRIES):
            last = parts[-1]
            parts[-1] = RasPart(count=last.count, what=last.what, reached=last.reached, ranks=(*last.ranks, rank))

    def _part(self, count: int, text: str, ranks: tuple[RasRank, ...]) -> None:
        reached, state, reported = _REACHED.search(text), _STATE.search(text), _REPORTED.search(text)
        parts = self.parts.setdefault(self.topic, []) if len(self.parts) < MAX_TOPICS else self.parts.get(self.topic)
        if parts is None or len(parts) >= MAX_ENTRIES:
            return
        if reached is not None:
            number = int(reached[1] or 0)
            parts.append(RasPart(count=count, what=f"operation {number}", reached=number, ranks=ranks))
        elif state is not None or reported is not None:
            what = state[1] if state is not None else reported[1] if reported is not None else ""
            parts.append(RasPart(count=count, what=what, ranks=ranks))

    def value(self) -> RasComm:
        kinds = {topic: tuple(parts) for topic, parts in self.parts.items() if parts}
        return RasComm(
            name=self.name,
            size=self.size,
            missing=self.missing,
            missing_ranks=tuple(self.missing_ranks),
            failed=kinds.pop("failed", ()),
            states=kinds.pop("status", ()),
            launched=tuple(kinds.items()),
        )


@dataclass(kw_only=True)
class RasReading:
    """Parses the reply line by line: headings start at the margin, and their content is indented."""

    sizes: dict[int, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: {"INCOMPLETE": 0, "DEAD": 0})
    processes: dict[str, list[RasProcess]] = field(default_factory=lambda: {"INCOMPLETE": [], "DEAD": []})
    found: dict[str, _Comm] = field(default_factory=dict)
    at: str = ""
    comm: _Comm | None = None

    def take(self, line: str) -> None:
        if not line.startswith(" "):
            self._heading(line)
        elif self.comm is not None:
            self.comm.take(line)
        elif self.at in self.counts:
            if found := _JOB.match(line):
                self.counts[self.at] = int(found[1])
            elif (found := _PROCESS.match(line)) and len(self.processes[self.at]) < MAX_ENTRIES:
                self.processes[self.at].append(RasProcess(pid=int(found["pid"]), address=found["address"]))

    def comms(self) -> Iterator[RasComm]:
        return (each.value() for each in self.found.values())

    def _heading(self, line: str) -> None:
        found = RAS_HEADING.match(line)
        if found is None:
            # An empty line separates the kinds of collectives of one communicator.
            if line:
                self.at, self.comm = line, None
            return
        name = f"#{found['group']}-{found['number']}"
        if name not in self.found and len(self.found) >= MAX_ENTRIES:
            self.comm = None
            return
        self.comm = self.found.setdefault(name, _Comm(name=name, size=self.sizes.get(int(found["group"]))))
        self.comm.topic = ""


def _is_complete(text: str) -> bool:
    at = 0
    for mark in _MARKS:
        at = text.find(mark, at)
        if at < 0:
            return False
    return text.startswith(_MARKS[0])


def _parse_process_count(text: str) -> int | None:
    """The process count of the job table: nodes, per node, per process, processes, GPUs; or nodes, processes, GPUs."""
    table = text.partition("Job summary")[2].partition("Communicators...")[0]
    rows = list(_TOTAL.finditer(table))
    if not rows or "(total)" not in table:
        return None
    last = rows[-1]
    return int(last[4] or last[2])
