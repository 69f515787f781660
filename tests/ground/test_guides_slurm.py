"""Two public guides under Slurm with containers, from bare hosts to a trained model, and what goes wrong in them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from guides import GuideRun, build_aboard_wheel, list_losses
from launching import build_sandbox

from aboard.sandbox import Sandbox

pytestmark = [
    pytest.mark.ground,
    pytest.mark.usefixtures("outer_packages"),
    pytest.mark.nightly,
    pytest.mark.xdist_group("guides-slurm"),
]

# One thread for each of 8 ranks; no GPU for DeepSpeed to look for.
ENV = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "HUGGING_FACE_HUB_TOKEN": "hf_none"}
BLANKS = {
    "<YOUR_ACCOUNT>": "crew",
    "<YOUR_PARTITION>": "debug",
    "<YOUR_LOG_PATH>": "home/crew",
    "<YOUR_HOME_DIRECTORY>": "/home/crew",
    "<YOUR_USERNAME>": "crew",
    "<YOUR_CACHE_DIRECTORY>": "/home/crew/fmengine/cache",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_aboard_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """Two bare nodes with four GPUs each."""
    with build_sandbox("guides-slurm", nodes=2, slots=4, slurm=True, containers=True, bare=True) as box:
        yield box


@pytest.fixture(scope="module")
def together(box: Sandbox, wheel: Path) -> GuideRun:
    """Together's guide, ready to launch."""
    guide = GuideRun(box, "together", env=ENV, wheel=wheel)
    for command in guide.page.commands[:-2]:
        guide.type(command)
    return guide


def test_fmengine(box: Sandbox, wheel: Path) -> None:
    """The guide's own script trains 8 pipeline stages with torchrun in Singularity; each node has its checkpoint."""
    guide = GuideRun(box, "fmengine", env=ENV, wheel=wheel)
    guide.type(f"sed -i '{';'.join(f's|{blank}|{value}|g' for blank, value in BLANKS.items())}' fmengine.sh")
    *_, launched, collected = guide.type_all()
    assert "captured srun on n[1-2] (fmengine.sh line" in launched
    assert "8 ranks on 2 nodes" in launched
    assert "host-affinity" in launched
    losses = list_losses(launched)
    assert losses[-1] < losses[0]
    assert "collected n1: back/n1/models has 9 files" in collected
    assert "collected n2: back/n2/models has 8 files" in collected
    _assert_nothing_left(box)


def test_together(together: GuideRun, box: Sandbox) -> None:
    """`sbatch` with the guide's options trains with Accelerate's FSDP in Apptainer; the model is on the first node."""
    launched, _ = (together.type(command) for command in together.page.commands[-2:])
    assert "4 ranks on 2 nodes" in launched
    assert "FSDPLlamaDecoderLayer in bf16" in launched
    losses = list_losses(launched)
    assert losses[-1] < losses[0]
    assert "model.safetensors" in together.type("ls back/n1/output")
    _assert_nothing_left(box)


def test_a_missing_token(together: GuideRun) -> None:
    """Without the token, the verdict has the Hub's refusal."""
    code, said = together.try_typing(f"unset HUGGING_FACE_HUB_TOKEN; {together.page.commands[-2]}")
    assert code == 1
    assert re.search(r"block run-exited [n\d,]+ seen: .*Cannot access gated repo for url meta-llama", said), said


def test_a_bind_that_a_node_lacks(together: GuideRun, box: Sandbox) -> None:
    """NCCL's topology is not installed on one node: the launch names the node and the directory."""
    lacking = box.hosts["n2"]
    lacking.run(["mv", "/etc/crusoe", "/etc/crusoe.old"], root=True).check_returncode()
    try:
        code, said = together.try_typing(together.page.commands[-2])
    finally:
        lacking.run(["mv", "/etc/crusoe.old", "/etc/crusoe"], root=True).check_returncode()
    assert code == 2
    assert re.search("container-bind +n2", said), said
    assert "/etc/crusoe doesn't exist" in said


def test_a_node_without_the_image(together: GuideRun, box: Sandbox) -> None:
    """The image was not copied to one node: the launch names the node and the image."""
    image = f"{together.folder}/image.sif"
    box.hosts["n2"].run(["mv", image, f"{image}.old"]).check_returncode()
    try:
        code, said = together.try_typing(together.page.commands[-2])
    finally:
        box.hosts["n2"].run(["mv", f"{image}.old", image]).check_returncode()
    assert code == 2
    assert re.search("container-image-missing +n2", said), said
    assert f"{image} is not on this node" in said


def _assert_nothing_left(box: Sandbox) -> None:
    """No unpacked image and no directory of a run."""
    for host in box.nodes:
        listed = host.run(["ls", "-A", "/tmp"]).stdout.split()
        assert [name for name in listed if name.startswith(("aboard", "rootfs", "build-temp"))] == [], host.name
