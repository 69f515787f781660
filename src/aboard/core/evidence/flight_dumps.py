"""Decodes the dumps of torch's flight recorder (pickle or JSON, torch 2.3 and later) to one rank's process groups."""

import re
from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from typing import Annotated

from aboard.core.decoding import CustomDecoder, DecodeError, JsonKey, Matching, MaxLength, Word, decode, parse_json
from aboard.core.evidence.node_snapshot import (
    CollectiveRecord,
    ProcessGroupRecord,
    TensorTypes,
    decode_count,
    decode_sizes,
    omit_uneven_tensors,
)
from aboard.core.evidence.plain_pickles import MOST_BYTES, parse_plain_pickle
from aboard.lazy_dataclass import dataclass

_PICKLE = b"\x80\x02"
# Of each group: the open collectives, oldest first, and the last ones.
_KEPT = 48
_MOST_RANKS = 100_000


def _decode_nanoseconds(value: object) -> float:
    return decode_count(value) / 1e9


_Name = Annotated[str, MaxLength(100)]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    collective_seq_id: Annotated[int, CustomDecoder(decode_count)] = -1
    # Up to torch 2.3.
    seq_id: Annotated[int, CustomDecoder(decode_count)] = -1
    pg_id: Annotated[int, CustomDecoder(decode_count)] = -1
    process_group: tuple[_Name, _Name] = ("", "")
    op: Annotated[str, JsonKey("profiling_name"), Matching(r"[\w:.()<> -]{0,80}")] = ""
    at: Annotated[float, JsonKey("time_created_ns"), CustomDecoder(_decode_nanoseconds)] = 0.0
    state: Word = ""
    retired: bool = False
    is_p2p: bool = False
    sizes: Annotated[str, JsonKey("input_sizes"), CustomDecoder(decode_sizes)] = ""
    types: Annotated[TensorTypes, JsonKey("input_dtypes")] = ()


@dataclass(frozen=True, kw_only=True)
class _GroupConfig:
    desc: _Name = ""
    ranks: Annotated[str, MaxLength(1_000_000), Matching(r"\[?[\d, ]*\]?")] = ""


@dataclass(frozen=True, kw_only=True)
class _GroupStatus:
    enqueued: Annotated[int, JsonKey("last_enqueued_collective"), CustomDecoder(decode_count)] = -1
    completed: Annotated[int, JsonKey("last_completed_collective"), CustomDecoder(decode_count)] = -1


@dataclass(frozen=True, kw_only=True)
class _Dump:
    version: Word
    entries: Annotated[tuple[_Entry, ...], MaxLength(20_000, last=True)]
    pg_config: Annotated[Mapping[str, _GroupConfig], MaxLength(4096)] = field(default_factory=dict)
    pg_status: Annotated[Mapping[str, _GroupStatus], MaxLength(4096)] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FlightDump:
    """One rank's dump: its groups with what they last did, and the ranks of each group by its name."""

    groups: tuple[ProcessGroupRecord, ...]
    members: Mapping[str, tuple[int, ...]]


def parse_flight_dump(data: bytes) -> FlightDump:
    """Parses one rank's dump, or raises a DecodeError."""
    if len(data) > MOST_BYTES:
        raise DecodeError("too long")
    dump = decode(_Dump, parse_plain_pickle(data) if data.startswith(_PICKLE) else parse_json(data))
    by_group: dict[str, list[_Entry]] = {}
    for entry in dump.entries:
        if max(entry.collective_seq_id, entry.seq_id) < 0:
            continue
        by_group.setdefault(entry.process_group[0] or str(entry.pg_id), []).append(entry)
    if dump.entries and not by_group:
        raise DecodeError("no collective in it has a number")
    groups = [_build_group(name, entries, dump) for name, entries in by_group.items()]
    idle = (name for name in dump.pg_config if name not in by_group)
    groups += [ProcessGroupRecord(name=name, what=dump.pg_config[name].desc) for name in idle]
    members = {name: _parse_ranks(config.ranks) for name, config in dump.pg_config.items()}
    return FlightDump(groups=tuple(groups), members=members)


def _build_group(name: str, entries: list[_Entry], dump: _Dump) -> ProcessGroupRecord:
    status = dump.pg_status.get(str(entries[-1].pg_id), _GroupStatus())
    records = [_build_record(entry) for entry in entries]
    still = [record for record in records[:-_KEPT] if not record.over]
    return ProcessGroupRecord(
        name=name,
        what=entries[-1].process_group[1],
        enqueued=status.enqueued,
        completed=status.completed,
        entries=(*still[:_KEPT], *records[-_KEPT:]),
    )


def _build_record(entry: _Entry) -> CollectiveRecord:
    return omit_uneven_tensors(
        CollectiveRecord(
            seq=max(entry.collective_seq_id, entry.seq_id),
            op=entry.op,
            at=entry.at,
            over=entry.retired or entry.state == "completed",
            p2p=entry.is_p2p,
            sizes=entry.sizes,
            types=entry.types,
        )
    )


@lru_cache(maxsize=4096)
def _parse_ranks(text: str) -> tuple[int, ...]:
    """The members as torch writes them; the dumps of all ranks have the same texts."""
    return tuple(int(word) for word in re.findall(r"\d{1,9}", text)[:_MOST_RANKS])
