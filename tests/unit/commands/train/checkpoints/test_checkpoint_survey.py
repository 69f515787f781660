"""The checkpoints in a directory of several nodes."""

import asyncio
from pathlib import Path

import pytest
from node_checkpoints import OUT, save
from node_homes import HomeTransport

from aboard.commands.train.checkpoints.checkpoint_survey import CheckpointSurvey
from aboard.core.cluster.node import Node
from aboard.transport.node_dialer import NodeDialer

pytestmark = pytest.mark.ci


def ask(homes: Path, *names: str) -> CheckpointSurvey:
    async def main() -> CheckpointSurvey:
        dialer = NodeDialer(lambda _node: HomeTransport(homes))
        survey = CheckpointSurvey(f"~/{OUT}", dialer)
        try:
            await survey.ask([Node(name=name) for name in names])
            return survey
        finally:
            await survey.close()
            await dialer.close()

    return asyncio.run(main())


def test_a_node_with_more_than_ten_thousand_checkpoints_is_named_and_does_not_stop_the_others(tmp_path: Path) -> None:
    """It counts as unreachable, with the number and the directory: each checkpoint would cost a request."""
    save(tmp_path, 4, 1)
    for step in range(10_001):
        folder = tmp_path / "n1" / OUT / f"step-{step:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "part").touch()
    survey = ask(tmp_path, "n1", "n2")
    assert list(survey.unreachable) == ["n1"]
    assert survey.unreachable["n1"].seen == f"n1: ~/{OUT} has more than 10,000 checkpoints"
    assert list(survey.held) == ["n2"]
    assert [offer.name for offer in survey.list_offers()] == ["step-000004"]
