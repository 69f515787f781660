"""Three public guides over ssh, from bare hosts to a trained model: the commands of their pages, as they stand."""

import re
from collections.abc import Callable, Mapping

import pytest
from guides import GuideRun, list_losses

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.network.firewall import FirewallDrop

pytestmark = [
    pytest.mark.ground,
    pytest.mark.nightly,
    pytest.mark.usefixtures("outer_packages"),
    pytest.mark.xdist_group("torch_b"),
]


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


def test_lmflow(make_box: Callable[..., Sandbox]) -> None:
    """A script's deepspeed becomes five ranks on uneven hosts; its model loads where it is collected."""
    guide = GuideRun(make_box(nodes=3, slots=2, bare=True), "lmflow", env={"NCCL_SOCKET_IFNAME": "eth0"})
    *_, checked, launched, evaluated, _ = guide.type_all()
    assert "done: 3 of 3 nodes reached; no problems found" in checked
    assert "captured deepspeed on n1 (./scripts/run_continual_pretrain.sh line 50)" in launched
    assert "5 ranks on 3 nodes, master n1:11000" in launched
    losses = list_losses(launched)
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert re.search(r"nll \d\.\d+ on 3 conversations", evaluated), evaluated
    code = (
        "from transformers import AutoModelForCausalLM as M; print(M.from_pretrained('back/n1/finetuned_llama').dtype)"
    )
    assert "torch.float" in guide.type(f'python -c "{code}"')


def test_gpt_neox(make_box: Callable[..., Sandbox]) -> None:
    """deepy.py runs on the head alone, and the ranks on the head and a worker that was bare."""
    box = make_box(nodes=1, slots=1, bare=True)
    guide = GuideRun(box, "gpt-neox")
    *_, checked, launched = guide.type_all()
    assert "done: 2 of 2 nodes reached; no problems found" in checked
    assert "captured deepspeed on " in launched
    assert "note: Nodes read from /job/hostfile, as deepspeed does." in launched
    assert "2 ranks on 2 nodes" in launched
    assert "ZeRO stage 1, batch 8" in launched
    losses = list_losses(launched)
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert guide.type("cat checkpoints/latest") == "global_step8"


def test_what_the_guides_leave_to_luck(make_box: Callable[..., Sandbox]) -> None:
    """Each mistake that the guides warn of is named with its node, before any rank starts."""
    box = make_box(nodes=3, slots=2, bare=True)
    guide = GuideRun(box, "llama-x")
    launch = next(command for command in guide.page.commands if command.startswith("aboard launch"))
    _expect(guide, {launch: (2, "reach-host-key-unknown")})
    for command in guide.page.commands[:4]:
        guide.type(command)
    _expect(
        guide,
        {
            "printf 'n1 slots=2\\nn1 slots=2\\n' > twice && aboard launch -- deepspeed -H twice train.py": (
                3,
                "n1 is already on line 1",
            ),
            "aboard launch -- deepspeed -H configs/hostfile --include n9 train.py": (3, "no node is called 'n9'"),
            f"echo NCCL_SOCKET_IFNAME=ens9f1 > .deepspeed_env; {launch}": (2, "network-interface-missing"),
        },
    )
    guide.type("rm .deepspeed_env")
    with inject_temporarily(box, box.host("n2"), FirewallDrop(ports="1024-65535")):
        _expect(guide, {launch: (2, "network-dropped")})
    guide.type("ssh n2 'rm llama-x/train_freeform.py'")
    _expect(guide, {launch: (2, "train_freeform.py")})


def _expect(guide: GuideRun, refused: Mapping[str, tuple[int, str]]) -> None:
    for command, (code, named) in refused.items():
        ended, said = guide.try_typing(command)
        assert (ended, named in said) == (code, True), said
