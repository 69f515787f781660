"""The network that NCCL uses in a live run, by what its ranks have open and what their hosts have."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from evidence_builders import at_collective, evidence, in_collective

from aboard.core.evidence.node_snapshot import RankSnapshot
from aboard.core.evidence.verdict import Judgement
from aboard.diagnoses import Severity
from aboard.doctor.collective.live_transport import add_transport

WHY = Judgement(progress="step 40")


def rank(*, rdma: bool | None, op: str = "nccl:all_reduce") -> RankSnapshot:
    return replace(in_collective(groups=(at_collective(20, op=op),)), rdma=rdma)


@pytest.mark.parametrize(
    ("rdma", "hcas", "severity", "seen"),
    [
        (
            {"n1": False, "n2": False},
            {"n1": ("mlx5_0",), "n2": ("mlx5_0",)},
            Severity.WARN,
            "NCCL uses TCP sockets on n[1-2]: no rank there has an RDMA device open, although n[1-2] have mlx5_0",
        ),
        (
            {"n1": True, "n2": False},
            {},
            Severity.WARN,
            "NCCL uses TCP sockets on n2: no rank there has an RDMA device open, although n1 uses RDMA",
        ),
        (
            {"n1": False, "n2": False},
            {},
            Severity.INFO,
            "NCCL uses TCP sockets on n[1-2]: no rank there has an RDMA device open, and the hosts have no adapter",
        ),
        ({"n1": True, "n2": True}, {"n1": ("mlx5_0",)}, None, ""),
        # A container whose ranks belong to another user.
        ({"n1": None, "n2": None}, {"n1": ("mlx5_0",)}, None, ""),
    ],
)
def test_sockets_are_a_warning_where_a_host_has_a_fabric(
    rdma: Mapping[str, bool | None], hcas: Mapping[str, tuple[str, ...]], severity: Severity | None, seen: str
) -> None:
    """The host's adapters count, which the container of the ranks may lack; without a sign it is information."""
    given = evidence(
        {number: rank(rdma=rdma[f"n{1 + number // 2}"]) for number in range(4)},
        nodes={name: {"hcas": each} for name, each in hcas.items()},
    )
    why = add_transport(WHY, given)
    assert [(each.severity, each.seen) for each in why.findings] == ([(severity, seen)] if severity is not None else [])
    assert all(each.fix for each in why.findings)


def test_every_live_answer_about_nccl_names_the_network_of_each_node() -> None:
    """Also where nothing is wrong; Gloo, and a run on one node, have nothing to say."""
    mixed = evidence({0: rank(rdma=True), 1: rank(rdma=False), 2: rank(rdma=None)}, per_node=1)
    network = "NCCL uses RDMA on n1, TCP sockets on n2, a network that is not known on n3"
    assert add_transport(WHY, mixed).progress == f"step 40; {network}"
    assert add_transport(WHY, evidence({0: rank(rdma=False), 1: rank(rdma=False)})) == WHY
    gloo = evidence({each: rank(rdma=False, op="gloo:all_reduce") for each in range(4)})
    assert add_transport(WHY, gloo) == WHY
