"""A log line without the prefixes of launchers, loggers and terminals, and the rank and node that they name."""

import re
from dataclasses import field

from aboard.doctor.logs.nccl_log import NcclLogSummary
from aboard.doctor.logs.timestamps import parse_timestamp
from aboard.doctor.shared.nccl_lines import NcclLine
from aboard.lazy_dataclass import dataclass

# CSI and OSC sequences of terminals, and whatever else moves a cursor.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]")
_MOST_PREFIXES = 8
_LONGEST_HOST = 253
# A name with a digit, a dot or a dash in it, before a colon: pdsh and DeepSpeed put the host there.
_HOST = r"(?=[\w.-]*[\d.-])(?P<node>[A-Za-z][\w-]*(?:\.[\w-]+)*|\d{1,3}(?:\.\d{1,3}){3})"
_NO_HOST = re.compile(
    r"(?:python[\d.]*|[\w.]*(?:Error|Exception|Warning|Interrupt|Exit|Iteration)|.*\.(?:py|sh|h|c|cc|cpp|so[\d.]*)"
    r"|(?:lib|torch\.|nvidia-|x86_64|slurm|srun|step|epoch|bf16|fp16|fp8|adam|beta).*)$"
)
_RANK_PREFIX = re.compile(r"\[rank(?P<rank>\d{1,18})\]: ?")
_PREFIXES = (
    # A container's or a cloud's log: the time, the stream, whether the line is whole.
    re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) (?:(?:stdout|stderr) [FP] )?"),
    # Pasted into a mail or an issue.
    re.compile(r"> (?=\S)"),
    # Ray: the actor or task, its process, and its node if that is another one.
    re.compile(r"\((?:[\w.]{1,80} )?pid=(?P<pid>\d{1,18})(?:, ip=(?P<node>[\d.]{7,15}))?(?:, [\w=]{1,80})?\) "),
    # kubectl logs --prefix.
    re.compile(r"\[pod/[^\]]{1,200}\] "),
    # torchrun --tee, and torch itself from 2.2 on: [default0]:, [trainer3]:, [rank3]:.
    _RANK_PREFIX,
    re.compile(r"\[[a-z_]+(?P<local>\d{1,18})\]: ?"),
    # Open MPI --tag-output.
    re.compile(r"\[\d+,(?P<rank>\d{1,18})\]<(?:stdout|stderr)>: ?"),
    # torch's elastic agent in 2.1 and 2.2, behind the time; accelerate test.
    re.compile(r"[a-z_]+(?:\.[a-z_]+)+: \[(?P<level>INFO|WARNING|ERROR)\] "),
    re.compile(r"(?:stderr|stdout): "),
    # srun --label.
    re.compile(r"\s{0,6}(?P<task>\d{1,6}): (?=\S)"),
    # Lightning and NeMo: [NeMo W 2026-11-15 08:00:00 …].
    re.compile(r"\[NeMo [IWE] [^\]]{0,80}\] ?"),
    # syslog: the time, the host, the program.
    re.compile(r"[A-Z][a-z]{2} +\d{1,2} [\d:]{8} (?P<node>[\w.-]+) (?=kernel:|\w[\w.-]*(?:\[\d+\])?:)"),
    re.compile(r"(?P<kernel>kernel: )"),
    # dmesg, with and without -T.
    re.compile(r"(?P<kernel>\[ *\d+\.\d{6}\] |\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]{8} \d{4}\] )"),
    # The Fabric Manager.
    re.compile(r"\[[A-Z][a-z]{2} +\d{1,2} \d{4} [\d:]{8}\] \[(?P<level>INFO|WARNING|ERROR)\] \[tid \d+\] "),
    # DeepSpeed: the time, the level, the place in the source, the rank.
    re.compile(r"\[\d{4}-\d\d-\d\d [\d:,.]+\] (?:\[(?P<level>INFO|WARNING|ERROR|DEBUG)\] )?"),
    re.compile(r"\[\w+\.py:\d+:[\w<>]+\] "),
    re.compile(r"\[Rank (?P<rank>-?\d{1,18})\] (?=\S)"),
    # glog in all its forms: [E ProcessGroupNCCL.cpp:828], [E1115 08:00:00.123 ProcessGroupNCCL.cpp:616], E1115 … 882].
    re.compile(r"\[(?P<level>[IWEF])(?:\d{3,4} [\d:.]{1,32})? ?[\w./-]+:\d+\] "),
    re.compile(r"(?P<level>[IWEF])\d{3,4} [\d:.]+ (?P<pid>\d{1,18}) [\w./-]+:\d+\] "),
    # Python's logging: the time with a level, or the level with the logger's name.
    re.compile(r"\d{4}-\d\d-\d\d [\d:,.]+ ?(?:[-|] )?(?:(?P<level>INFO|WARNING|ERROR|CRITICAL|DEBUG)\b[ :|-]*)?"),
    re.compile(r"[\w.]+ - (?P<level>INFO|WARNING|ERROR|CRITICAL|DEBUG) - "),
    re.compile(r"\d\d/\d\d/\d{4} [\d:]{8} - (?P<level>INFO|WARNING|ERROR) - "),
    re.compile(r"(?P<level>INFO|WARNING|ERROR|CRITICAL):[\w.]+:"),
    re.compile(r"\[(?P<level>INFO|WARNING|ERROR)\|[^\]]{1,60}\] (?:[\d:, -]+>> )?"),
    re.compile(_HOST + r": (?=\S)"),
)
_PG_RANK = re.compile(r"\[(?:PG [^\[\]]*?)?Rank (\d{1,18})\]")
_RANK_WITHIN = re.compile(r"\[rank(\d{1,18})\]:|\[Rank (\d{1,18})\]")


@dataclass(slots=True, kw_only=True)
class ParsedLogLine:
    """A line's text and source. `task` is srun's number, of a rank or of a node."""

    text: str
    node: str = ""
    rank: int | None = None
    local: int | None = None
    task: int | None = None
    pid: int | None = None
    at: float | None = None
    level: str = ""
    kernel: bool = False

    @property
    def mild(self) -> bool:
        """Whether it is logged as a warning or lower."""
        return self.level[:1] in ("I", "W", "D")

    @property
    def source(self) -> tuple[object, ...]:
        """The key that lines of one source share."""
        return self.node, self.rank, self.local, self.task


def split_terminal_line(line: bytes) -> list[str]:
    """The line as text without terminal control sequences; a progress bar that overwrites itself gives several."""
    text = line.decode("utf-8", "replace")
    parts = text.split("\r") if "\r" in text else [text]
    return [_ANSI.sub("", part).rstrip() for part in parts if part.strip()]


def parse_log_line(line: str) -> ParsedLogLine:
    """Strips one prefix after another, in any order."""
    parsed = ParsedLogLine(text=line, at=parse_timestamp(line))
    for _ in range(_MOST_PREFIXES):
        if not _strip_prefix(parsed):
            break
    if parsed.rank is None:
        within = _RANK_WITHIN.search(parsed.text) or _PG_RANK.search(parsed.text)
        if within:
            parsed.rank = int(next(group for group in within.groups() if group))
    return parsed


def _strip_prefix(parsed: ParsedLogLine) -> bool:
    for form in _PREFIXES:
        found = form.match(parsed.text)
        if not found or not found.end():
            continue
        groups = found.groupdict()
        node = groups.get("node")
        # Behind the kernel's prefix, a name before a colon is that of a driver.
        taken = (parsed.node or parsed.kernel) and form is _PREFIXES[-1]
        if node and (len(node) > _LONGEST_HOST or taken or _NO_HOST.match(node)):
            continue
        parsed.kernel = parsed.kernel or "kernel" in groups
        parsed.node = node or parsed.node
        # A launcher that forwards ranks' lines adds a level of its own, which is meaningless.
        parsed.level = "" if form is _RANK_PREFIX else parsed.level or groups.get("level") or ""
        for name in ("rank", "local", "task", "pid"):
            value = groups.get(name)
            if value is not None and getattr(parsed, name) is None and int(value) >= 0:
                setattr(parsed, name, int(value))
        parsed.text = parsed.text[found.end() :]
        return True
    return False


_MOST = 200_000
# A log of one node or rank usually has it in its name: gpu07.log, rank_3.txt, nccl.gpu07.4711.
_FILE_RANK = re.compile(r"(?:^|[._-])rank[._-]?(\d+)(?=[._-]|$)")
_FILE_NODE = re.compile(r"(?:gpu|node|host|worker|compute|cn|dgx|n)-?\d+")
# What else such a name may have; n16 in bench-n16.log is a number of nodes.
_FILE_WORDS = re.compile(
    r"(?:^|[._-])(?:nccl|log|out|err|txt|gz|std(?:out|err)|slurm|rank[._-]?\d+|\d{3,}|kern|dmesg)(?=[._-]|$)"
)


@dataclass(kw_only=True)
class LogNodeIndex:
    """Maps addresses, pids and ranks to nodes, as lines name them; bounded."""

    by_address: dict[str, str] = field(default_factory=dict)
    by_pid: dict[int, str] = field(default_factory=dict)
    by_rank: dict[int, str] = field(default_factory=dict)
    rank_of_pid: dict[tuple[str, int], int] = field(default_factory=dict)

    def add_nccl_line(self, line: NcclLine, log: NcclLogSummary) -> None:
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

    def add_prefix(self, parsed: ParsedLogLine) -> None:
        """Records the node of a rank from a prefix that names both."""
        if parsed.node and parsed.rank is not None and len(self.by_rank) < _MOST:
            self.by_rank.setdefault(parsed.rank, parsed.node)

    def node(self, name: str) -> str:
        """The node's name for an address, where a line gave it."""
        return self.by_address.get(name, name)


def parse_file_name(name: str) -> tuple[str, int | None]:
    """The node and rank in a file's name."""
    base = name.rpartition("/")[2]
    node, rank = _FILE_NODE.fullmatch(_FILE_WORDS.sub("", base).strip("._-")), _FILE_RANK.search(base)
    return (node[0] if node else ""), (int(rank[1]) if rank else None)
