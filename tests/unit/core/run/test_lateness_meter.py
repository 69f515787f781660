"""Who came late to collectives: compared by sequence number, over nodes whose clocks differ."""

from collections.abc import Mapping

import pytest

from aboard.agent.beacon.aboard_beacon_flight import _hash
from aboard.core.run.lateness import LatenessWindow
from aboard.core.run.lateness_meter import GroupArrivals, LatenessMeter

Report = tuple[GroupArrivals, ...] | str


def make_arrivals(times: Mapping[int, float], key: str = "0", *, name: str = "", last: int | None = None) -> Report:
    return (GroupArrivals(key=key, name=name or key, times=times, last=max(times) if last is None else last),)


def measure(reports: Mapping[int, Report], *, errors: Mapping[int, float] | None = None) -> LatenessWindow:
    """One window; without errors, all ranks are on one node."""
    meter = LatenessMeter()
    for rank, report in reports.items():
        node = "n1" if errors is None else f"n{rank}"
        meter.take(rank, node, 0.0 if errors is None else errors[rank], report)
    window = meter.close_window(100.0, 10.0, 1)
    assert window is not None
    return window


def test_the_last_rank_is_late_by_what_the_typical_other_one_waited() -> None:
    """Rank 3 is 50 ms late to one of two collectives; that others differ by 1 ms is theirs."""
    times = {rank: {7: 1.0 + 0.001 * rank, 8: 1.1} for rank in range(5)}
    times[3][7] = 1.05
    window = measure({rank: make_arrivals(each) for rank, each in times.items()})
    assert window.late[3].mean == pytest.approx((1.05 - 1.0015) / 2)
    assert window.late[3].worst == pytest.approx(1.05 - 1.0015)
    assert max(late.worst for rank, late in window.late.items() if rank != 3) < 0.003
    assert (window.count, window.measured) == (2, ((0, 4),))
    assert window.interval == pytest.approx(0.1)


def test_a_slow_node_is_late_with_all_of_its_ranks() -> None:
    """Two of its ranks come together: each is compared with the typical rank, not with the second last."""
    window = measure({rank: make_arrivals({1: 5.0 if rank > 3 else 4.0}) for rank in range(6)})
    assert {rank: late.mean for rank, late in window.late.items()} == {4: 1.0, 5: 1.0}


def test_of_two_ranks_the_other_one_waits() -> None:
    window = measure({0: make_arrivals({1: 2.0, 2: 3.0}), 1: make_arrivals({1: 2.5, 2: 3.0})})
    assert {rank: (late.mean, late.worst) for rank, late in window.late.items()} == {1: (0.25, 0.5)}


def test_less_than_the_clocks_of_two_nodes_can_tell_is_no_lateness() -> None:
    """The uncertainty is stated, and what exceeds it is counted whole."""
    errors = {0: 0.001, 1: 0.004, 2: 0.001}
    reports = {
        0: make_arrivals({1: 1.0, 2: 2.0}),
        1: make_arrivals({1: 1.0045, 2: 2.02}),
        2: make_arrivals({1: 1.0, 2: 2.0}),
    }
    window = measure(reports, errors=errors)
    assert window.late[1].worst == pytest.approx(0.02)
    assert window.late[1].mean == pytest.approx(0.01)
    assert window.uncertainty == pytest.approx(0.005)
    assert measure(reports).late[1].mean == pytest.approx(0.01225)


def test_ranks_are_compared_in_their_own_groups() -> None:
    """Two pairs have groups of one name: the key tells them apart. A rank is late in the group that it costs most."""
    reports = {
        rank: (
            *make_arrivals({1: 1.0, 2: 1.0 + 0.01 * (rank == 3)}, "all", name="default_pg"),
            *make_arrivals({1: 9.0 * (rank // 2) + 0.5 * (rank == 3)}, f"tp/{rank // 2}", name="mesh_tp"),
        )
        for rank in range(4)
    }
    window = measure(reports)
    assert {rank: (late.mean, late.group) for rank, late in window.late.items()} == {3: (0.5, "mesh_tp")}


def test_a_collective_that_a_rank_has_not_reached_waits_for_it() -> None:
    """A rank that is late by several windows is late in the one in which it arrives."""
    meter = LatenessMeter()
    for rank in (0, 1, 2):
        meter.take(rank, "n1", 0.0, make_arrivals({1: 10.0, 2: 11.0 + 0.25 * rank} if rank else {1: 10.0}))
    first = meter.close_window(20.0, 10.0, 1)
    assert first is not None
    assert first.count == 1
    for rank in (0, 1, 2):
        meter.take(rank, "n1", 0.0, "idle")
    second = meter.close_window(30.0, 10.0, 1)
    assert second is not None
    assert second.unmeasured == {"idle": ((0, 2),)}
    meter.take(0, "n1", 0.0, make_arrivals({2: 36.5}))
    third = meter.close_window(40.0, 10.0, 1)
    assert third is not None
    assert third.late[0].worst == pytest.approx(36.5 - 11.375)


def test_a_rank_that_died_keeps_the_others_from_nothing() -> None:
    """It sends nothing any more; after a minute the others are compared without it."""
    meter = LatenessMeter()
    meter.take(2, "n1", 0.0, make_arrivals({0: 0.0}))
    counts = []
    for number in range(1, 10):
        for rank in (0, 1):
            meter.take(rank, "n1", 0.0, make_arrivals({number: 10.0 * number}))
        window = meter.close_window(10.0 * number, 10.0, 1)
        counts.append(window.count if window is not None else 0)
    assert counts[0] == 0
    assert sum(counts) == 9


def test_what_one_rank_claims_uses_no_memory_without_end() -> None:
    """Collectives that no other rank has are dropped, and so are groups beyond any number."""
    meter = LatenessMeter()
    for number in range(100):
        meter.take(0, "n1", 0.0, make_arrivals({1000 * number + each: 1.0 for each in range(1000)}, last=0))
        meter.take(1, "n1", 0.0, make_arrivals({0: 1.0}))
        meter.take(1, "n1", 0.0, make_arrivals({0: 1.0}, key=f"g{number}"))
        meter.close_window(10.0 * number, 10.0, 1)
    assert sum(len(group.waiting) for group in meter._groups.values()) < 5000


def test_ranks_that_sample_at_different_rates_choose_the_same_collectives() -> None:
    """The rarer choice is part of the denser one, and no step length meets only its own multiples."""
    dense = {seq for seq in range(100_000) if _hash(seq) < 1 << 29}
    rare = {seq for seq in range(100_000) if _hash(seq) < 1 << 26}
    assert rare < dense
    assert len(dense) == pytest.approx(100_000 / 8, rel=0.03)
    for step in (2, 3, 7, 64, 89, 96, 144):
        of_first = sum(seq % step == 0 for seq in dense)
        assert of_first == pytest.approx(len(dense) / step, rel=0.3)
