"""NCCL's RAS as JSON (2.28 and later), put as the lines that its text has about what is wrong: one judge for both."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any

from aboard.core.decoding import JsonKey, MaxLength, Signed, Word, decode
from aboard.lazy_dataclass import dataclass

_FINE = (0, 7)  # ncclSuccess, ncclInProgress
_ERRORS = ("", "Unhandled CUDA error", "System error", "Internal error", "Invalid argument", "Invalid usage")
_REMOTE = 6
# As RAS puts it, and what a name that is none becomes.
_NO_HOST = "unknown"
_MOST_GROUPS = 16


@dataclass(frozen=True, kw_only=True)
class _Status:
    init_state: int = 0
    async_error: int = 0
    considered_dead: bool = False


@dataclass(frozen=True, kw_only=True)
class _Rank:
    rank: int
    host: Word = _NO_HOST
    pid: Signed = -1
    cuda_dev: int = 0
    status: _Status = _Status()
    counts: Annotated[Mapping[Word, int], JsonKey("collective_counts"), MaxLength(32)] = field(default_factory=dict)

    def format_place(self) -> str:
        return f"-- GPU {self.cuda_dev} managed by process {max(0, self.pid)} on node {self.host}"


_Ranks = Annotated[tuple[_Rank, ...], MaxLength(100_000)]


@dataclass(frozen=True, kw_only=True)
class _Communicator:
    ranks: _Ranks = ()
    missing: Annotated[_Ranks, JsonKey("missing_ranks")] = ()


@dataclass(frozen=True, kw_only=True)
class _Report:
    communicators: Annotated[tuple[_Communicator, ...], MaxLength(100_000)]


def list_ras_lines(value: Any) -> list[str]:
    """The lines about communicators that are not in order; none if all are. Raises a DecodeError."""
    found = []
    for number, each in enumerate(decode(_Report, value).communicators):
        lines = [*_list_missing(each), *_list_errors(each), *_list_outliers(each)]
        found += [f"#{number}-0 (0) MISMATCH", *lines] if lines else []
    return found


def _list_missing(communicator: _Communicator) -> Iterator[str]:
    if communicator.missing:
        yield f"  Missing communicator data from {len(communicator.missing)} ranks"
    for each in communicator.missing:
        dead = ", considered dead" if each.status.considered_dead else ""
        yield f"  Process {max(0, each.pid)} on node {each.host} managing GPU {each.cuda_dev}, rank {each.rank}{dead}"


def _list_errors(communicator: _Communicator) -> Iterator[str]:
    for each in communicator.ranks:
        error = next((code for code in (each.status.async_error, each.status.init_state) if code not in _FINE), 0)
        if error:
            what = _ERRORS[error] if error < len(_ERRORS) else "Remote process error" * (error == _REMOTE)
            yield f"  Rank {each.rank} reported {what or 'Unexpected error'} {each.format_place()}"


def _list_outliers(communicator: _Communicator) -> Iterator[str]:
    """For each kind of collective in which ranks differ: how many are where, and who, for all but the largest group."""
    for kind in next((each.counts for each in communicator.ranks), ()):
        by_count: dict[int, list[_Rank]] = {}
        for each in communicator.ranks:
            by_count.setdefault(each.counts.get(kind, 0), []).append(each)
        groups = sorted(by_count.items(), key=lambda item: -len(item[1]))
        if len(groups) > 1:
            yield f"  Communicator ranks have different {kind} operation counts"
        for place, (count, ranks) in enumerate(groups[:_MOST_GROUPS] if len(groups) > 1 else ()):
            yield f"  {len(ranks)} ranks have launched up to operation {count}"
            known = (each for each in ranks if place and each.host != _NO_HOST)
            yield from (f"  Rank {each.rank} {each.format_place()}" for each in known)
