"""NCCL's log, and torch's watchdog lines, as values: which ranks initialized, over which network, and who waits."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field

from aboard.core.cluster.node_sets import fold_names
from aboard.core.text.input_text import format_count
from aboard.core.text.rank_sets import name_ranks
from aboard.doctor.shared.nccl_lines import ADAPTER, CHANNEL, NETWORK, NcclLine, parse_version
from aboard.lazy_dataclass import dataclass

# `Bootstrap : Using [0]eth0:…` up to 2.7, `Bootstrap : Using eth0:…` up to 2.23, `Bootstrap: Using …` since.
_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (?:\[\d\])?([^:\s]+):([\w.:]+?)(?:%\w+)?<\d+>")
# `comm 0x… rank 3 nranks 8 cudaDev 3 … - Init START` from 2.18 on; `Init COMPLETE` in all.
_COMM = re.compile(r"\brank (\d{1,18}) n[Rr]anks (\d{1,18})")
_START, _COMPLETE, _ABORT = "Init START", "Init COMPLETE", "Abort"
_WORK = re.compile(
    r"WorkNCCL\(SeqNum=(?P<seq>\d{1,18}), OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d{1,18}), NumelOut=\d+)?"
    r"(?:, Timeout\(ms\)=(?P<limit>\d{1,18}))?\)"
)
# 2.2: `last enqueued NCCL work: 80, last completed NCCL work: 77`; 2.7 on: `last enqueued work: 80, last completed …`.
_LAST = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>\d{1,18}), last completed (?:NCCL )?work: (?P<completed>\d{1,18})"
)
# A setting that chooses adapters or switches them off, or a plugin for one.
_FABRIC = re.compile(
    r"NCCL_IB_DISABLE set (?:by environment )?to 1|NCCL_IB_HCA set (?:by environment )?to \S+|NET/OFI .{0,80}"
    r"|NCCL_NET set (?:by environment )?to (?!Socket)\S+"
)
_DIRECT = re.compile(r"GPU Direct RDMA (?:\(\w+\) )?([Ee]nabled|[Dd]isabled) for HCA|use ring PXN \d GDR ([01])")
_PLUGIN = re.compile(
    r"Loaded net plugin (.{1,60}?) \(v\d+\)|NET/Plugin ?: (?:No plugin found|Could not find|Using internal)()"
)
_TUNER = re.compile(r"TUNER/Plugin: (?:Using|Loaded|Plugin name)[\w ]{0,30}? ([\w./-]{1,80})$|using (internal) tuner")
_CHANNELS = re.compile(r"^(\d{1,6}) coll channels")
# torch's description of a process group, and what people call it.
_GROUP = re.compile(r"\[PG (?:ID \S{1,20} PG )?GUID \w{0,80}\(([\w. -]{1,80})\)")
_GROUP_KINDS = {
    "expert": re.compile(r"(?i)expert|moe|(?:^|_)ep(?:_|$)"),
    "tensor": re.compile(r"(?i)tensor|(?:^|_)tp(?:_|$)"),
    "pipeline": re.compile(r"(?i)pipeline|(?:^|_)pp(?:_|$)"),
    "context": re.compile(r"(?i)context|(?:^|_)cp(?:_|$)"),
    "data": re.compile(r"(?i)data|(?:^|_)(?:dp|fsdp|ddp)(?:_|$)"),
}
_NODES = re.compile(r"\bnNodes (\d{1,6})")
MOST_RANKS = 100_000


@dataclass(kw_only=True)
class NcclRank:
    """What one process has logged of its initialization; "" and None are unknown."""

    host: str
    pid: int
    rank: int | None = None
    world: int | None = None
    version: str = ""
    interface: str = ""
    address: str = ""
    network: str = ""
    hcas: tuple[str, ...] = ()
    # What the log says that only a node with a fabric would say.
    fabric: str = ""
    plugin: str | None = None
    tuner: str = ""
    channels: str = ""
    # How channels go, and whether GPUDirect RDMA is on where no channel says so.
    ways: set[str] = field(default_factory=set)
    direct: bool | None = None
    started: bool = False
    completed: bool = False
    aborted: bool = False


@dataclass(frozen=True, kw_only=True)
class NcclWork:
    """A collective that a watchdog gave up on."""

    seq: int
    op: str
    numel: int | None = None
    limit: int | None = None

    def __str__(self) -> str:
        return f"{self.op} (sequence number {self.seq}{f', {self.numel} elements' if self.numel else ''})"


@dataclass(frozen=True, kw_only=True)
class NcclStall:
    """Which ranks wait where: `blamed` are the ranks that keep the others waiting, and `how` they differ."""

    waiting: tuple[int, ...]
    at: NcclWork | None
    blamed: tuple[int, ...]
    how: str


@dataclass(kw_only=True)
class NcclLogSummary:
    """The summary of all lines; bounded by the number of ranks."""

    ranks: dict[tuple[str, int], NcclRank] = field(default_factory=dict)
    nodes: int = 1
    # Of a line without a prefix, as NCCL wrote it up to 2.22.
    version: str = ""
    works: dict[int, NcclWork] = field(default_factory=dict)
    last: dict[int, tuple[int, int]] = field(default_factory=dict)
    # The description of the process group whose work timed out, by rank.
    groups: dict[int, str] = field(default_factory=dict)

    def take(self, line: NcclLine) -> None:
        """Adds one line of NCCL's own."""
        known = self.ranks.get((line.host, line.pid))
        if known is None:
            if len(self.ranks) >= MOST_RANKS:
                return
            known = self.ranks[line.host, line.pid] = NcclRank(host=line.host, pid=line.pid)
        _update_rank(known, line.text)
        if found := _NODES.search(line.text):
            self.nodes = max(self.nodes, int(found[1]))

    def add_watchdog_line(self, rank: int, text: str) -> None:
        """Adds a line of torch's watchdog for a rank; of several groups, the first work that timed out counts."""
        work = parse_work(text)
        if work is not None and len(self.works) < MOST_RANKS:
            self.works.setdefault(rank, work)
        if (found := _GROUP.search(text)) and len(self.groups) < MOST_RANKS:
            self.groups.setdefault(rank, found[1])
        last = _LAST.search(text)
        if last and rank not in self.last and len(self.last) < MOST_RANKS:
            self.last[rank] = int(last["enqueued"]), int(last["completed"])

    def open(self) -> list[NcclRank]:
        """The ranks whose initialization began and never completed."""
        return [each for each in self.ranks.values() if each.started and not each.completed]

    @property
    def world(self) -> int | None:
        return max((each.world for each in self.ranks.values() if each.world), default=None)


def parse_work(text: str) -> NcclWork | None:
    found = _WORK.search(text)
    if found is None:
        return None
    numel, limit = found["numel"], found["limit"]
    return NcclWork(
        seq=int(found["seq"]), op=found["op"], numel=int(numel) if numel else None, limit=int(limit) if limit else None
    )


def find_stall(works: Mapping[int, NcclWork], last: Mapping[int, tuple[int, int]], world: int | None) -> NcclStall:
    """Which ranks keep the others waiting, from watchdog lines: another collective, an earlier one, or none."""
    waiting = tuple(sorted(works))
    if not works:
        return NcclStall(waiting=(), at=None, blamed=(), how="")
    (seq, op), most = Counter((work.seq, work.op) for work in works.values()).most_common(1)[0]
    at = next(work for work in works.values() if (work.seq, work.op) == (seq, op))
    with_it = [rank for rank in waiting if (works[rank].seq, works[rank].op) == (seq, op)]
    other_op = _pick_minority(
        waiting, {rank for rank in waiting if works[rank].seq == seq and works[rank].op != op}, most
    )
    if other_op:
        other_work = works[other_op[0]]
        return NcclStall(waiting=tuple(with_it), at=at, blamed=other_op, how=f"entered {other_work} instead")
    sizes = Counter(works[rank].numel for rank in with_it)
    if len(sizes) > 1 and op in ("ALLREDUCE", "BROADCAST", "_ALLREDUCE_BASE"):
        usual = sizes.most_common(1)[0][0]
        odd = tuple(rank for rank in with_it if works[rank].numel != usual)
        same = tuple(rank for rank in with_it if works[rank].numel == usual)
        return NcclStall(waiting=same, at=at, blamed=odd, how=f"passed {works[odd[0]].numel} elements to it")
    behind = _pick_minority(waiting, {rank for rank in waiting if works[rank].seq < seq}, most)
    if behind:
        return NcclStall(waiting=tuple(with_it), at=at, blamed=behind, how=f"reached only {works[behind[0]]}")
    slow = _pick_minority(tuple(last), {rank for rank, (enqueued, _) in last.items() if enqueued < seq}, most)
    if slow:
        return NcclStall(
            waiting=tuple(with_it), at=at, blamed=slow, how=f"reached only sequence number {last[slow[0]][0]}"
        )
    ahead = tuple(rank for rank in waiting if works[rank].seq > seq)
    absent = () if ahead else _list_absent_ranks(waiting, world)
    how = "did not report this collective" if absent else ""
    if ahead:
        names = " and ".join(f"rank {rank} waited in {works[rank]}" for rank in ahead[:3])
        how = f"{names} instead: the ranks are in different collectives"
    return NcclStall(waiting=tuple(with_it), at=at, blamed=absent, how=how)


def format_stall(stall: NcclStall) -> str:
    """The sentence for a stall."""
    if stall.at is None:
        return ""
    start = f"{name_ranks(stall.waiting)} waited in {stall.at}"
    return f"{start}; {name_ranks(stall.blamed)} {stall.how}" if stall.blamed else f"{start}; {stall.how}".rstrip("; ")


def name_group(log: NcclLogSummary) -> str:
    """Which process group the ranks waited in, where torch's description is the same for all of them."""
    names = {log.groups.get(rank, "") for rank in log.works}
    name = names.pop() if len(names) == 1 else ""
    if not name or name == "default_pg":
        return ""
    kind = " ".join(kind for kind, words in _GROUP_KINDS.items() if words.search(name))
    return f"the {kind} parallel group ({name})" if kind else f"the group {name}"


def describe_network(log: NcclLogSummary) -> Iterator[str]:
    """What NCCL says of itself in a few lines: the run, then each network with the nodes that use it."""
    ranks = [each for each in log.ranks.values() if each.network or each.ways]
    if not ranks:
        return
    hosts = list(dict.fromkeys(each.host for each in ranks))
    versions = "/".join(sorted({each.version for each in log.ranks.values() if each.version} or {log.version}))
    facts = [format_count(log.world or len(ranks), "rank"), f"{format_count(len(hosts), 'node')} in the log"]
    facts += [f"{each} channels" for each in sorted({each.channels for each in ranks if each.channels})[:1]]
    facts += [f"tuner {each}" for each in sorted({each.tuner for each in ranks if each.tuner})[:1]]
    yield f"NCCL {versions}".rstrip() + ": " + ", ".join(facts)
    alike: dict[str, list[str]] = {}
    for host in hosts:
        alike.setdefault(_describe_node([each for each in ranks if each.host == host]), []).append(host)
    for text, names in alike.items():
        yield f"{fold_names(names)}: {text}"


def _describe_node(ranks: list[NcclRank]) -> str:
    """The network of one node, GPUDirect, the plugin, and how GPUs inside the node are connected."""
    ways = set[str]().union(*(each.ways for each in ranks))
    across = sorted(way for way in ways if way.startswith("NET/"))
    network = next((each.network for each in ranks if each.network), across[0].split("/")[1] if across else "")
    adapters = ranks[0].interface if network == "Socket" else ", ".join(ranks[0].hcas[:8])
    parts = [f"{network} over {adapters}" if adapters else network] if network else []
    if network != "Socket":
        direct = {way.endswith("/GDRDMA") for way in across} or {
            each.direct for each in ranks if each.direct is not None
        }
        said = {(): "not logged", (True,): "on", (False,): "off"}.get(tuple(direct), "on some channels only")
        parts.append(f"GPUDirect RDMA {said}")
    plugins = {each.plugin for each in ranks} - {None}
    parts += [f"plugin {each}" if each else "no plugin" for each in sorted(map(str, plugins))[:1]]
    inside = sorted(way for way in ways if not way.startswith("NET/"))
    return "; ".join([*parts, *([f"inside the node {', '.join(inside)}"] if inside else [])])


def list_missing_ranks(ranks: Collection[NcclRank], world: int | None) -> tuple[int, ...]:
    """Ranks of the world that no process in the log has; empty when the world size is unknown."""
    there = {each.rank for each in ranks if each.rank is not None}
    return _list_others(there, world) if world and there else ()


def _update_rank(known: NcclRank, text: str) -> None:
    known.version = parse_version(text) or known.version
    if found := _FABRIC.search(text):
        known.fabric = known.fabric or found[0].rstrip(". ")
    _update_connections(known, text)
    if found := CHANNEL.search(text):
        known.ways.add(found[1] + (found[2] or ""))
    elif found := _BOOTSTRAP.search(text):
        known.interface, known.address = found[1], found[2]
    elif found := NETWORK.search(text):
        known.network = found[1].rstrip()
    elif text.startswith("NET/IB") and "Using" in text:
        known.hcas = tuple(ADAPTER.findall(text))
    elif found := _COMM.search(text):
        # The first communicator is the world's; later ones are subgroups.
        if known.rank is None or int(found[2]) >= (known.world or 0):
            known.rank, known.world = int(found[1]), int(found[2])
        known.started |= _START in text
        known.completed |= _COMPLETE in text
        known.aborted |= _ABORT in text


def _update_connections(known: NcclRank, text: str) -> None:
    if found := _DIRECT.search(text):
        known.direct = (found[1] or found[2]).lower() in ("enabled", "1")
    elif found := _PLUGIN.search(text):
        known.plugin = found[1] or known.plugin or ""
    elif found := _TUNER.search(text):
        known.tuner = found[1] or found[2]
    elif found := _CHANNELS.search(text):
        known.channels = found[1]


def _pick_minority(all_ranks: tuple[int, ...], some: set[int], most: int) -> tuple[int, ...]:
    """Those ranks, if they are the minority."""
    return tuple(sorted(some)) if some and len(some) < len(all_ranks) and len(some) <= most else ()


def _list_absent_ranks(waiting: tuple[int, ...], world: int | None) -> tuple[int, ...]:
    if world is None:
        world = max(waiting) + 1
    absent = _list_others(set(waiting), world)
    return absent if len(absent) <= len(waiting) else ()


def _list_others(ranks: Collection[int | None], world: int) -> tuple[int, ...]:
    """The other ranks of the world; none of one that cannot be, whatever a log says."""
    return tuple(rank for rank in range(world) if rank not in ranks) if world <= MOST_RANKS else ()
