"""A silent node is lost only if enough others can't reach it either; a kernel that refuses is alive."""

import asyncio
import socket
from pathlib import Path

import pytest
from slurm_commands import SlurmStandIns

from aboard.agent.network.tcp_probe import CONNECT_ONLY, connect_to_peers
from aboard.core.run.recovery.lost_nodes import LOST_SECONDS, is_lost, judge_attempts
from aboard.transport.slurm.slurm_commands import find_slurmd_port


@pytest.mark.parametrize(
    ("answers", "others", "expected"),
    [
        ([False, False], 3, True),
        ([False, True], 3, False),
        ([False, None], 3, False),
        ([None, None], 3, False),
        # With too few others that respond, the head's own link may be at fault.
        ([False], 2, False),
        ([], 3, False),
        # Two nodes: the other one decides. One node: nobody can say.
        ([False], 1, True),
        ([True], 1, False),
        ([], 0, False),
    ],
)
def test_a_node_is_lost_if_two_others_or_all_can_not_reach_it(
    answers: list[bool | None], others: int, *, expected: bool
) -> None:
    """Never before it was silent for a while."""
    assert is_lost(LOST_SECONDS, answers, others) is expected
    assert not is_lost(LOST_SECONDS - 0.1, answers, others)


@pytest.mark.parametrize(
    ("outcomes", "reached"),
    [
        (["dropped"], False),
        (["rejected", "dropped"], False),
        (["ok"], True),
        (["refused"], True),
        (["dropped", "refused"], True),
        (["unresolved"], None),
        (["unresolved", "dropped"], False),
        ([], None),
    ],
)
def test_any_answer_on_any_address_shows_that_a_node_is_alive(outcomes: list[str], reached: bool | None) -> None:  # noqa: FBT001 - a table
    """A name that doesn't resolve is no attempt."""
    assert judge_attempts(outcomes) is reached


def test_who_can_not_reach_a_healthy_node_either_knows_nothing() -> None:
    """A firewall between all nodes, or its own broken link, explains both."""
    assert judge_attempts(["dropped"], ["dropped"]) is None
    assert judge_attempts(["dropped"], ["refused"]) is False
    assert judge_attempts(["dropped"], ["unresolved"]) is False
    assert judge_attempts(["ok"], ["dropped"]) is True


def test_a_connection_only_sends_nothing() -> None:
    """So that an sshd has nothing to log but a connection that ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reply = connect_to_peers({"targets": [["127.0.0.1", port, CONNECT_ONLY]], "seconds": 2.0, "timeout": 3.0})
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(1) == b""
    assert [result[0] for result in reply["results"]] == ["ok"]
    refused = connect_to_peers({"targets": [["127.0.0.1", port, CONNECT_ONLY]], "seconds": 2.0, "timeout": 3.0})
    assert [result[0] for result in refused["results"]] == ["refused"]


@pytest.mark.parametrize(
    ("shown", "port"),
    [("SlurmctldPort           = 6817\nSlurmdPort              = 7818\n", 7818), ("SlurmctldPort = 6817", 6818)],
)
def test_the_port_of_slurmd_is_the_one_that_slurm_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, port: int
) -> None:
    """Or its default, where scontrol doesn't say."""
    SlurmStandIns(tmp_path / "bin", monkeypatch).put("scontrol", f"printf '%s' '{shown}'")
    assert asyncio.run(find_slurmd_port()) == port
