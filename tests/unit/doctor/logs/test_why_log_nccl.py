"""NCCL's log grammar: who is set up, over which network, and who waits for whom."""

import pytest

from aboard.doctor.logs.nccl_log import (
    NcclLogSummary,
    NcclWork,
    describe_network,
    find_stall,
    format_stall,
    list_missing_ranks,
    name_group,
    parse_work,
)
from aboard.doctor.shared.nccl_lines import parse_nccl_line

INFO = "n1:10:20 [3] NCCL INFO {0}"


def log_of(*texts: str) -> NcclLogSummary:
    log = NcclLogSummary()
    for text in texts:
        line = parse_nccl_line(text)
        assert line is not None, text
        log.take(line)
    return log


def work(seq: int, op: str = "ALLREDUCE", numel: int = 8) -> NcclWork:
    return NcclWork(seq=seq, op=op, numel=numel)


@pytest.mark.parametrize(
    "line",
    [
        "n1:10:20 [3] NCCL INFO hello",
        "n1:10:20 [3] misc/socket.cc:49 NCCL WARN hello",
        "[2026-03-02 11:04:19] n1:10:20 [3] init.cc:97 NCCL WARN hello",
        "[2026-03-02 11:04:19] n1:10:20 [3] init.cc:97 (ncclIbTest) NCCL WARN hello",
        "[rank3]: n1:10:20 NCCL INFO hello",
    ],
)
def test_prefixes_of_all_versions(line: str) -> None:
    """Host and process are found, and the text alone is left."""
    found = parse_nccl_line(line)
    assert found is not None
    assert (found.host, found.pid, found.text) == ("n1", 10, "hello")


def test_what_a_rank_tells_of_its_set_up() -> None:
    """Interface, address, network, adapters, rank and world."""
    log = log_of(
        INFO.format("Bootstrap : Using [0]ib0:10.0.0.11<0>"),
        INFO.format("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB ib0:10.0.0.11<0>"),
        INFO.format("Using network IB"),
        INFO.format("NCCL version 2.27.3+cuda12.8"),
        INFO.format("ncclCommInitRank comm 0x1 rank 3 nranks 8 cudaDev 3 busId 1b000 commId 0x9 - Init START"),
    )
    (rank,) = log.ranks.values()
    assert (rank.interface, rank.address, rank.network, rank.version) == ("ib0", "10.0.0.11", "IB", "2.27.3")
    assert (rank.hcas, rank.rank, rank.world) == (("mlx5_0", "mlx5_1"), 3, 8)
    assert log.open() == [rank]


def test_a_smaller_group_does_not_change_the_world() -> None:
    """A later communicator of a part of the ranks has ranks of its own."""
    log = log_of(
        INFO.format("comm 0x1 rank 3 nranks 8 cudaDev 3 - Init COMPLETE"),
        INFO.format("comm 0x2 rank 0 nranks 2 cudaDev 3 - Init COMPLETE"),
    )
    assert log.world == 8
    assert [each.rank for each in log.ranks.values()] == [3]
    assert list_missing_ranks(list(log.ranks.values()), 8) == (0, 1, 2, 4, 5, 6, 7)


def test_works_of_all_versions() -> None:
    """Sizes are told from torch 2.1 on."""
    old = parse_work("timeout: WorkNCCL(SeqNum=7, OpType=BROADCAST, Timeout(ms)=1800000) ran")
    new = parse_work("timeout: WorkNCCL(SeqNum=7, OpType=BROADCAST, NumelIn=5, NumelOut=5, Timeout(ms)=600000) ran")
    assert old == NcclWork(seq=7, op="BROADCAST", limit=1_800_000)
    assert new == NcclWork(seq=7, op="BROADCAST", numel=5, limit=600_000)
    assert parse_work("nothing of the kind") is None


def test_the_rank_that_says_nothing_is_named() -> None:
    """All others gave up on the same collective."""
    stand = find_stall({rank: work(78) for rank in range(8) if rank != 5}, {}, 8)
    assert stand.blamed == (5,)
    assert (
        format_stall(stand)
        == "ranks 0-4,6-7 waited in ALLREDUCE (sequence number 78, 8 elements); rank 5 did not report this collective"
    )


def test_the_rank_in_another_collective_is_named() -> None:
    """At the same number, with another operation or size."""
    works = {rank: work(78) for rank in range(4)}
    assert find_stall({**works, 2: work(78, "BROADCAST")}, {}, 4).blamed == (2,)
    assert find_stall({**works, 2: work(78, numel=9)}, {}, 4).blamed == (2,)


def test_the_rank_that_is_behind_is_named() -> None:
    """By the work that it gave up on, or by what it enqueued last."""
    works = {rank: work(78) for rank in range(4)}
    assert find_stall({**works, 1: work(77)}, {}, 4).blamed == (1,)
    last = {0: (80, 77), 1: (80, 77), 3: (77, 77)}
    assert find_stall({rank: works[rank] for rank in (0, 1, 2)}, last, None).blamed == (3,)


def test_nobody_is_blamed_where_most_are_silent() -> None:
    """One rank's time-out out of many tells only that it waited."""
    assert find_stall({0: work(78)}, {}, 64).blamed == ()
    assert find_stall({}, {}, 64).at is None


def test_what_nccl_says_of_the_run_is_a_few_lines() -> None:
    """Version, ranks and nodes; then per network its nodes, adapters, GPUDirect, plugin, and the ways inside a node."""
    texts = (
        "NET/Plugin: Loaded net plugin IBext_v8 (v8)",
        "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
        "Using network IBext_v8",
        "comm 0x1 rank {0} nranks 16 cudaDev 0 - Init START",
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IBext_v8/0/GDRDMA(PCI)/Shared",
        "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
        "24 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p channels per peer",
        "TUNER/Plugin: Failed to find ncclTunerPlugin_v2 symbol, using internal tuner instead.",
    )
    fabric = [f"n{node}:10:20 [0] NCCL INFO {text.format(node)}" for node in (1, 2) for text in texts]
    sockets = [
        "n3:10:20 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so.",
        "n3:10:20 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.3<0>",
        "n3:10:20 [0] NCCL INFO NCCL version 2.27.3+cuda12.8",
        "n3:10:20 [0] NCCL INFO Using network Socket",
    ]
    assert list(describe_network(log_of(*fabric, *sockets))) == [
        "NCCL 2.27.3: 16 ranks, 3 nodes in the log, 24 channels, tuner internal",
        "n[1-2]: IBext_v8 over mlx5_0; GPUDirect RDMA on; plugin IBext_v8; inside the node P2P",
        "n3: Socket over eth0; no plugin",
    ]


@pytest.mark.parametrize(
    ("described", "named"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "the tensor parallel group (TENSOR_MODEL_PARALLEL_GROUP)"),
        ("EXPERT_DATA_PARALLEL_GROUP", "the expert data parallel group (EXPERT_DATA_PARALLEL_GROUP)"),
        ("mesh_dp_shard", "the data parallel group (mesh_dp_shard)"),
        ("mesh_pp", "the pipeline parallel group (mesh_pp)"),
        ("default_pg", ""),
        ("adapters", "the group adapters"),
    ],
)
def test_a_process_group_is_called_what_it_is(described: str, named: str) -> None:
    """By torch's description; the group of all ranks needs no name."""
    log = NcclLogSummary()
    text = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
    for rank in (0, 1):
        log.add_watchdog_line(rank, f"[PG ID 2 PG GUID 5({described}) Rank {rank}] {text}")
    assert name_group(log) == named
