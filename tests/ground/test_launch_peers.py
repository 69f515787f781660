"""The scripts of the peers run unchanged: torchrun, Accelerate with FSDP, DeepSpeed ZeRO-2, the HF Trainer and TRL.

Each is started by the line of its own README in examples/, on 2 + 2 ranks and on 2 + 1, and its model then answers
questions that were not in the training data.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from asking import check_answers
from launching import PYTHON, Launches, Ran, build_sandbox

from aboard.sandbox import Sandbox

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("torch_b")]

EXAMPLES = Path(__file__).parents[2] / "examples"
# DeepSpeed's first start compiles an extension: a minute on two quiet cores, several on busy ones.
SECONDS = 480
OPTIONS = ("--set", f"cluster.python={PYTHON}")
ENV = ("HF_HUB_OFFLINE=1", "DS_ACCELERATOR=cpu", "TORCH_EXTENSIONS_DIR=/shared/torch_extensions")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The slots of n1 and n2."""

    slots: tuple[int, int]

    @property
    def world(self) -> int:
        return sum(self.slots)

    @property
    def local_ranks(self) -> list[int]:
        return [local for count in self.slots for local in range(count)]


EVEN, UNEVEN = Shape(slots=(2, 2)), Shape(slots=(2, 1))
# Uneven slots are the harder case; what needs minutes of compiling, or only another library, is nightly.
SHAPES = pytest.mark.parametrize(
    "shape", [pytest.param(EVEN, id="2+2", marks=pytest.mark.nightly), pytest.param(UNEVEN, id="2+1")]
)


@pytest.fixture(scope="module")
def two() -> Iterator[Sandbox]:
    """Two nodes with two slots."""
    with build_sandbox("peers", nodes=2, slots=2) as made:
        yield made


@SHAPES
def test_torchrun(two: Sandbox, shape: Shape) -> None:
    """A plain script of torch.distributed, with the number of ranks that its command says."""
    said = _run(two, "torchrun", shape, per_node="auto")
    assert len(_losses(said, shape)) == 10


@pytest.mark.nightly
@SHAPES
def test_accelerate(two: Sandbox, shape: Shape) -> None:
    """The FSDP config reaches the script: layers are wrapped, and all ranks together hold a weight once."""
    said = _run(two, "accelerate-fsdp", shape, without=("num_processes",))
    assert len(_losses(said, shape)) == 10
    shards = [re.findall(r"FSDPLlamaDecoderLayer; of the head (\d+) of 4096", text) for text in said]
    assert sum(int(size) for (size,) in shards) == 4096
    assert all(int(size) < 4096 for (size,) in shards)


@pytest.mark.nightly
@SHAPES
def test_deepspeed(two: Sandbox, shape: Shape) -> None:
    """Without pdsh, and without ssh between nodes; each script is told its local rank."""
    said = _run(two, "deepspeed-zero2", shape)
    assert len(_losses(said, shape)) == 10
    told = [re.findall(r"ZeRO stage 2, local rank (\d+)", text) for text in said]
    assert told == [[str(local)] for local in shape.local_ranks]


@pytest.mark.nightly
@SHAPES
def test_trainer(two: Sandbox, shape: Shape) -> None:
    """The Trainer sees its world by torchrun's environment."""
    said = _run(two, "hf-trainer", shape, per_node="auto")
    assert len(_losses(said, shape)) == 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "trained"),
    [((), 415_616), (("--use_peft", "--learning_rate", "1e-3"), 16_384)],
    ids=["all-weights", "adapter"],
)
def test_dpo(two: Sandbox, options: tuple[str, ...], trained: int) -> None:
    """TRL's DPO under `accelerate launch`; the option of the README trains LoRA's matrices only."""
    said = _run(two, "trl-dpo", EVEN, prepare=("make_data.py", "make_model.py"), options=options)
    assert len(_losses(said, EVEN)) == 1
    assert all(f"trained weights: {trained}" in text for text in said)


def _run(
    box: Sandbox,
    example: str,
    shape: Shape,
    *,
    per_node: str = "",
    without: tuple[str, ...] = (),
    prepare: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
) -> list[str]:
    """What each rank printed. On uneven slots the command and its config change as the README says."""
    launches = Launches(box, folder=f"/shared/{example}")
    launches.put("../hostfile", "".join(f"n{number} slots={slots}\n" for number, slots in enumerate(shape.slots, 1)))
    for file in (EXAMPLES / example).iterdir():
        lines = file.read_text().splitlines(keepends=True)
        left = without if shape is UNEVEN and file.suffix == ".yaml" else ()
        launches.put(file.name, "".join(line for line in lines if line.partition(":")[0] not in left))
    for script in prepare:
        made = box.head.run([PYTHON, script], cwd=launches.folder, timeout=SECONDS)
        assert made.returncode == 0, made.stderr
    words = [*_typed(EXAMPLES / example), *options]
    if shape is UNEVEN and per_node:
        words[words.index("--nproc-per-node") + 1] = per_node
    ran = launches.launch(*OPTIONS, *words, env=ENV, timeout=SECONDS)
    assert ran.code == 0, ran.said
    assert ran.findings == []
    assert launches.orphans(ran.run) == {}
    assert "\n    python ask.py\n" in (EXAMPLES / example / "README.md").read_text()
    asked = box.head.run([PYTHON, "ask.py"], cwd=launches.folder, timeout=SECONDS)
    assert asked.returncode == 0, asked.stderr
    check_answers(asked.stdout)
    return _printed(ran, shape.world)


def _typed(example: Path) -> list[str]:
    """The words behind `aboard launch` in the line that its README gives."""
    (line,) = re.findall(r"^    aboard launch (.*)$", (example / "README.md").read_text(), re.MULTILINE)
    return shlex.split(line)


def _printed(ran: Ran, world: int) -> list[str]:
    lines = ran.launches.aboard("logs", ran.run, "--no-fold", "--stream", "stdout", "-n", "all").stdout
    found = re.findall(r"^\S+ \[rank (\d+)\] (.*)$", lines, re.MULTILINE)
    assert {int(rank) for rank, _ in found} == set(range(world))
    return ["\n".join(text for rank, text in found if int(rank) == wanted) for wanted in range(world)]


def _losses(said: list[str], shape: Shape) -> list[str]:
    """The losses that all ranks agree upon; each has said its place in the world."""
    for rank, text in enumerate(said):
        assert f"done: rank {rank} of world size {shape.world}" in text
    losses = [re.findall(r"^(?:step \d+|train) loss ([\d.]+)$", text, re.MULTILINE) for text in said]
    assert losses == [losses[0]] * shape.world
    return losses[0]
