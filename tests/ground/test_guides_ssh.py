"""Three public guides over ssh, from bare hosts to a trained model: the commands of their pages, as they stand."""

from collections.abc import Callable

import pytest
from guides import GuideRun, list_losses

from aboard.sandbox import Sandbox

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("torch_c")]


def test_llama_x(make_box: Callable[..., Sandbox]) -> None:
    """DeepSpeed's command with a hostfile and .deepspeed_env trains on two of three hosts that were bare."""
    guide = GuideRun(make_box(nodes=3, slots=2, bare=True), "llama-x")
    *_, checked, launched, collected = guide.type_all()
    assert "done: 3 of 3 nodes reached; no problems found" in checked
    assert "note: Environment variables read from ./.deepspeed_env." in launched
    assert "4 ranks on 2 nodes, master n1:29500" in launched
    assert "ZeRO stage 3" in launched
    losses = list_losses(launched)
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert "collected n1: back/n1/output has 1 file" in collected
    assert "pytorch_model.bin" in guide.type("ls back/n1/output")
