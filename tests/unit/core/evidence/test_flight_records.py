"""Flight records of ranks: decoded from what their beacons send, and compared."""

import json

import pytest

from aboard.core.evidence.flight_records import list_group_progress
from aboard.core.evidence.node_snapshot import ProcessGroupRecord, decode_node_snapshot

# As the beacon of each of two ranks dumped them from torch 2.13 with Gloo; rank 1 has not come to the fifth.
REAL_ROWS = (
    """[[1, 0, false, "gloo:all_reduce", "scheduled", true, 1795130586289950137],
    [2, 0, false, "gloo:broadcast", "scheduled", true, 1795130586357434582, [[[10]], [[10]], ["Float"]]],
    [3, 0, false, "gloo:all_to_all", "scheduled", true, 1795130586357840100, [[[3]], [[2]], ["Float"]]],
    [4, 0, false, "gloo:scatter", "scheduled", true, 1795130586358201056, [[[2, 2]], [[2]], ["Float"]]],
    [5, 0, false, "gloo:all_reduce", "scheduled", false, 1795130586358336171, [[[4, 3]], [[4, 3]], ["Float"]]]]""",
    """[[1, 0, false, "gloo:all_reduce", "scheduled", true, 1795130586299609959, [[[10]], [[10]], ["Float"]]],
    [2, 0, false, "gloo:broadcast", "scheduled", true, 1795130586353389594, [[[10]], [[10]], ["Float"]]],
    [3, 0, false, "gloo:all_to_all", "scheduled", true, 1795130586357904596, [[[3]], [[4]], ["Float"]]],
    [4, 0, false, "gloo:scatter", "scheduled", true, 1795130586358133209, [[], [[2]], []]]]""",
)


def seen_flights(*rows: str) -> dict[int, tuple[ProcessGroupRecord, ...]]:
    """The groups of each rank, decoded as a node's answer is."""
    groups = [{"0": {"what": "default_pg", "enqueued": -1, "entries": json.loads(each)}} for each in rows]
    told = {"children": {str(rank): {"flight": {"groups": each}} for rank, each in enumerate(groups)}}
    seen = decode_node_snapshot(told, {str(rank): rank for rank in range(len(rows))}, 0.0)
    return {rank: each.groups or () for rank, each in seen.ranks.items()}


def test_a_beacons_row_is_decoded_with_sizes_and_types() -> None:
    """Only of calls to which every rank passes the same: an uneven all_to_all is no mismatch."""
    records = seen_flights(*REAL_ROWS)
    assert [(each.sizes, each.types) for each in records[0][0].entries] == [
        ("", ()),
        ("[[10]]", ("Float",)),
        ("", ()),
        ("", ()),
        ("[[4, 3]]", ("Float",)),
    ]
    assert [each.sizes for each in records[1][0].entries] == ["[[10]]", "[[10]]", "", ""]


@pytest.mark.parametrize(
    ("op", "tensors", "odd"),
    [
        ("gloo:all_reduce", '[[[4, 3]], [[4, 3]], ["Float"]]', False),
        ("gloo:all_reduce", '[[[4, 2]], [[4, 2]], ["Float"]]', True),
        ("gloo:all_reduce", '[[[4, 3]], [[4, 3]], ["BFloat16"]]', True),
        ("nccl:_reduce_scatter_base", '[[[4, 2]], [[2]], ["Float"]]', True),
        ("nccl:all_to_all", '[[[4, 2]], [[9]], ["Float"]]', False),
        ("nccl:allreduce_coalesced", '[[[4, 2]], [[4, 2]], ["Float"]]', False),
        ("nccl:all_gather", '[[[4, 2]], [[9]], ["Float"]]', False),
        ("nccl:gather", '[[[4, 2]], [], ["Float"]]', False),
    ],
)
def test_a_rank_with_other_sizes_or_types_is_odd(op: str, tensors: str, odd: bool) -> None:  # noqa: FBT001 - a table
    """Where all ranks must pass the same; elsewhere a healthy mixture of experts would be a mismatch."""
    rows = [f'[[5, 0, false, "{op}", "scheduled", false, 1, [[[4, 3]], [[4, 3]], ["Float"]]]]'] * 3
    rows.append(f'[[5, 0, false, "{op}", "scheduled", false, 1, {tensors}]]')
    (progress,) = list_group_progress(seen_flights(*rows), {})
    assert list(progress.odd) == ([3] if odd else [])
