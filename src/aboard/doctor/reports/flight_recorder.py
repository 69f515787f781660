"""Judges the flight-recorder dumps of a run: which rank is behind, stuck, or in another collective than the others."""

from collections.abc import Iterator, Mapping

from aboard.core.evidence.flight_dumps import FlightDump
from aboard.core.evidence.flight_records import list_group_progress
from aboard.core.evidence.node_snapshot import CollectiveRecord, ProcessGroupRecord
from aboard.core.text.input_text import agree, format_count
from aboard.core.text.rank_sets import fold_ranks, name_ranks
from aboard.diagnoses import Finding, Severity
from aboard.doctor.hang import diagnoses as hang
from aboard.doctor.hang.collective_hang import format_collective
from aboard.doctor.logs import collective_messages as messages, diagnoses as undetermined
from aboard.lazy_dataclass import dataclass

_NEVER = -1.0
_HALF = 0.5


@dataclass(frozen=True, kw_only=True)
class _Group:
    """One process group: how far each rank is, and the collective that each waits in.

    A rank's place is its oldest open collective; half a number less where it has yet to issue it.
    """

    name: str
    places: Mapping[int, float]
    waiting: Mapping[int, CollectiveRecord]

    @property
    def front(self) -> float:
        return max((self.places[rank] for rank in self.waiting), default=_NEVER)

    def behind(self) -> set[int]:
        """Ranks that others wait for."""
        front = self.front
        return {rank for rank, place in self.places.items() if place < front}

    def victims(self) -> set[int]:
        """Ranks that wait for others."""
        least = min(self.places.values())
        return {rank for rank in self.waiting if self.places[rank] > least}


def judge_flight_dumps(dumps: Mapping[int, FlightDump]) -> list[Finding]:
    """The ranks that keep the others waiting; nothing where no collective is open."""
    by_name: dict[str, dict[int, ProcessGroupRecord]] = {}
    for rank, dump in dumps.items():
        for record in dump.groups:
            by_name.setdefault(record.name, {})[rank] = record
    groups = list(_list_groups(by_name))
    mismatches = [each for of_rank in by_name.values() for each in _find_mismatches(of_rank)]
    found = mismatches or list(_find_culprits(groups)) or list(_find_missing_dumps(groups, dumps))
    return found or list(_describe_common_wait(groups))


def _list_groups(by_name: Mapping[str, Mapping[int, ProcessGroupRecord]]) -> Iterator[_Group]:
    for name, of_rank in by_name.items():
        open_now = {rank: entry for rank, group in of_rank.items() if (entry := _find_open(group)) is not None}
        places = {rank: _find_place(group, open_now.get(rank)) for rank, group in of_rank.items()}
        what = next((group.what for group in of_rank.values() if group.what not in ("", "undefined")), name)
        if open_now:
            yield _Group(name=what, places=places, waiting=open_now)


def _find_open(group: ProcessGroupRecord) -> CollectiveRecord | None:
    left = [entry for entry in group.entries if not entry.over and not entry.p2p]
    return min(left, key=lambda entry: entry.seq, default=None)


def _find_place(group: ProcessGroupRecord, waiting: CollectiveRecord | None) -> float:
    if waiting is not None:
        return waiting.seq
    last = max([group.enqueued, *(entry.seq for entry in group.entries if not entry.p2p)])
    return last + _HALF if last >= 0 else _NEVER


def _find_mismatches(of_rank: Mapping[int, ProcessGroupRecord]) -> Iterator[Finding]:
    for progress in list_group_progress({rank: (group,) for rank, group in of_rank.items()}, {}):
        if progress.odd and progress.usual is not None:
            entry = next(iter(progress.odd.values()))
            usual = [rank for rank in progress.waiting if rank not in progress.odd]
            # Of two ranks there is no majority: either may be wrong.
            named = sorted(progress.odd) if len(usual) > 1 else sorted(progress.waiting)
            yield hang.MISMATCH.finding(
                nodes=(),
                ranks=tuple(named),
                seen=f"{name_ranks(progress.odd)} issued {format_collective(entry)} (sequence number"
                f" {progress.number}{_format_group(progress.what)}); {name_ranks(usual)} issued"
                f" {format_collective(progress.usual)}",
                fix=hang.MISMATCH.fix("code-and-detail"),
            )


def _find_culprits(groups: list[_Group]) -> Iterator[Finding]:
    """Ranks that others wait for, and that wait for nobody else: with many groups, most that are behind are victims."""
    behind = {rank for group in groups for rank in group.behind()}
    culprits = sorted(behind - {rank for group in groups for rank in group.victims()})
    if behind and not culprits:
        ranks = sorted(behind)
        seen = f"{name_ranks(ranks)} wait for each other in {_join_names(groups)}"
        yield hang.ORDER.finding(nodes=(), ranks=tuple(ranks), seen=seen, fix=hang.ORDER.fix())
    stuck = [rank for rank in culprits if any(rank in group.waiting and rank in group.behind() for group in groups)]
    for named, diagnosis in ((stuck, undetermined.RANK_STUCK), (sorted({*culprits} - {*stuck}), hang.ABSENT)):
        if named:
            group = max(groups, key=lambda each: (len({*named} & {*each.behind()}), len(each.waiting)))
            ranks_text = fold_ranks(named)
            fix = diagnosis.fix("log" if diagnosis is hang.ABSENT else "", ranks=ranks_text)
            yield diagnosis.finding(nodes=(), ranks=tuple(named), seen=_describe_behind(named, group), fix=fix)


def _describe_behind(named: list[int], group: _Group) -> str:
    waiting = sorted(rank for rank, entry in group.waiting.items() if entry.seq == group.front)
    entry = group.waiting[waiting[0]]
    others = f"{name_ranks(waiting)} {agree(waiting, 'waits', 'wait')} in {_format_place(entry, group)}"
    at = [rank for rank in named if rank in group.waiting and rank in group.behind()]
    if at:
        first = group.waiting[at[0]]
        them = agree(named, "is", "are")
        return f"{others}; {name_ranks(named)} {them} still in {format_collective(first)} number {first.seq}, which the others completed"  # noqa: E501
    return f"{others}; {name_ranks(named)} never issued it"


def _find_missing_dumps(groups: list[_Group], dumps: Mapping[int, FlightDump]) -> Iterator[Finding]:
    """All dumps wait in the same collectives: then a rank without a dump is the one to look at."""
    members = {name: ranks for dump in dumps.values() for name, ranks in dump.members.items()}
    missing = sorted({rank for ranks in members.values() for rank in ranks} - dumps.keys())
    if groups and missing:
        group = max(groups, key=lambda each: len(each.waiting))
        waiting = sorted(group.waiting)
        entry = group.waiting[waiting[0]]
        seen = f"{name_ranks(waiting)} {agree(waiting, 'waits', 'wait')} in {_format_place(entry, group)}"
        there = f"there is no dump of {name_ranks(missing)}"
        yield messages.COLLECTIVE_TIMEOUT.finding(
            severity=Severity.WARN,
            nodes=(),
            ranks=tuple(missing) if len(missing) <= len(dumps) else (),
            seen=f"{seen}; {there}",
            why="The ranks without a dump died, hang where they can't write one, or their files were not passed.",
            fix=messages.COLLECTIVE_TIMEOUT.fix("dumps"),
        )


def _describe_common_wait(groups: list[_Group]) -> Iterator[Finding]:
    """Every rank issued the collective. NCCL's dumps are written on a timeout, Gloo's whenever somebody asks."""
    for group in sorted(groups, key=lambda each: -len(each.waiting))[:1]:
        _rank, entry = min(group.waiting.items())
        ranks = sorted(group.waiting)
        timed_out = entry.op.startswith("nccl")
        yield messages.COLLECTIVE_TIMEOUT.finding(
            severity=Severity.WARN if timed_out else Severity.INFO,
            nodes=(),
            ranks=tuple(ranks)[:64],
            seen=f"{name_ranks(ranks)} {agree(ranks, 'waits', 'wait')} in {_format_place(entry, group)};"
            f" {'its dump alone does not show for whom' if len(group.places) == 1 else 'every rank issued it'}",
            why="Where all ranks issued a collective and it doesn't complete, no data gets through the network or"
            " between the GPUs, or the slowest rank's GPU is still busy.",
            fix=messages.COLLECTIVE_TIMEOUT.fix("dumps" if len(group.places) == 1 else "network"),
        )


def _format_place(entry: CollectiveRecord, group: _Group) -> str:
    return f"{format_collective(entry)} (sequence number {entry.seq}{_format_group(group.name)})"


def _format_group(name: str) -> str:
    return f", group {name}" if name else ""


def _join_names(groups: list[_Group]) -> str:
    names = sorted({group.name for group in groups if group.behind()})
    return f"{format_count(len(names), 'group')} ({', '.join(names[:4])})"
