"""A plan for other launchers: the text that they are given, whole."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.launchers import deepspeed, torchrun
from aboard.core.launchers.flag_parser import parse_flags
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.launcher_export import build_plan_export, format_deepspeed, format_torchrun
from aboard.core.plan.plan import MasterAddress, Plan
from aboard.core.plan.plan_builder import build_plan
from aboard.core.plan.program import Program, ProgramKind
from aboard.diagnoses import InputError

GOLDEN = Path(__file__).parents[2] / "golden" / "export"
SCRIPT = Program(
    kind=ProgramKind.SCRIPT,
    target="train it.py",
    args=("--lr", "2e-5", "--name", "it's $5", "--fp16"),
    local_rank="--local_rank",
)
PLAIN = Program(kind=ProgramKind.SCRIPT, target="train.py", args=("--lr", "2e-5"))
COMMON = Node(
    name="gpu01",
    slots=4,
    address="10.0.0.1",
    python="/opt/venv/bin/python",
    workdir="/home/me/project",
    setup=("module load cuda",),
    env={"NCCL_DEBUG": "INFO", "MOTD": 'say "hi" to $USER', "HF_TOKEN": "hf_very_secret"},
)
UNEVEN = (replace(COMMON, picked=(0, 2)), replace(COMMON, name="gpu02", address=None, picked=(1,)))


def planned(*nodes: Node, program: Program = SCRIPT, port: int = 29501) -> Plan:
    """A real plan of these nodes, as launch makes it."""
    seats = {node.name: NodeResources(address=node.target, interface="eth1", cores=8) for node in nodes}
    master = MasterAddress(node=nodes[0].name, address="10.0.0.1", port=port)
    request = LaunchRequest(program=program, env={"WANDB_API_KEY": "wandb_very_secret"}, threads=4)
    return build_plan(Cluster(nodes=nodes), request, seats, run="r1", master=master)


def test_torchrun() -> None:
    """A part for each node with its own devices, no secret, and words that a shell gives back as they were."""
    assert format_torchrun(build_plan_export(planned(*UNEVEN))) == (GOLDEN / "torchrun.sh").read_text("utf-8")


def test_deepspeed() -> None:
    """A hostfile, an env file without secrets, and a command that names the picked slots."""
    files = format_deepspeed(build_plan_export(planned(*UNEVEN)))
    assert files.hostfile == (GOLDEN / "hostfile").read_text("utf-8")
    assert files.deepspeed_env == (GOLDEN / "deepspeed_env").read_text("utf-8")
    assert files.setup == "module load cuda\n"
    assert files.command == (GOLDEN / "deepspeed.sh").read_text("utf-8")


def test_torchrun_in_containers() -> None:
    """Each node's container starts torchrun; what Aboard would find out on the node is left to the reader by name."""
    fields: dict[str, Any] = {"binds": ("/data",), "env": {"SEED": "1"}, "options": ("--hostname=x",)}
    boxes = (
        Container(runtime="apptainer", image="/images/train.sif", writable_tmpfs=True, **fields),
        Container(runtime="docker", image="train:1", gpus="nvidia", workdir="/workspace", **fields),
    )
    nodes = (replace(COMMON, name=f"gpu{place}", container=box) for place, box in enumerate(boxes))
    text = format_torchrun(build_plan_export(planned(*nodes)))
    assert text == (GOLDEN / "torchrun-container.sh").read_text("utf-8")
    assert "secret" not in text


def test_deepspeed_does_not_start_containers() -> None:
    """Its launcher runs outside: the plan is refused, and torchrun's export is named."""
    inside = replace(COMMON, container=Container(runtime="apptainer", image="x.sif"))
    with pytest.raises(InputError, match="run in a container") as raised:
        format_deepspeed(build_plan_export(planned(inside)))
    assert "--as torchrun" in raised.value.problems[0].fix


def test_the_parsers_read_what_is_printed() -> None:
    """The tables of flags that read a pasted command know every flag of an exported one, and give the plan back."""
    export = build_plan_export(planned(COMMON, replace(COMMON, name="gpu02", address="10.0.0.2"), program=PLAIN))
    printed = {
        torchrun.GRAMMAR: (format_torchrun(export), "torch.distributed.run"),
        deepspeed.GRAMMAR: (format_deepspeed(export).command, "deepspeed.launcher.runner"),
    }
    for grammar, (text, module) in printed.items():
        words = shlex.split(text.partition(module)[2].partition("\n\n")[0].replace("\\\n", ""))
        flags = parse_flags(grammar, words)
        assert (flags.text("master_addr"), flags.count("master_port")) == ("10.0.0.1", 29501)
        assert (flags.target, flags.args) == (PLAIN.target, PLAIN.args)


def test_one_rank_on_one_node() -> None:
    """One is one."""
    seen = build_plan_export(planned(Node(name="a", slots=1)))
    assert "# 1 rank on 1 node by torchrun." in format_torchrun(seen)
    assert "# 1 rank on 1 node by DeepSpeed," in format_deepspeed(seen).command
    assert "# a: node 0, 1 of 1 slot\n" in format_deepspeed(seen).command


def test_the_plain_case_is_plain() -> None:
    """Whole nodes need no --include, a module is one, and a port that is found at the start is torch's own here."""
    module = Program(kind=ProgramKind.MODULE, target="pkg.train")
    nodes = (Node(name="a", slots=2), Node(name="b", slots=2))
    seen = build_plan_export(planned(*nodes, program=module, port=0))
    assert "--include" not in format_deepspeed(seen).command
    assert "--no_local_rank --module pkg.train\n" in format_deepspeed(seen).command
    assert "--master-port 29500 \\\n    --module pkg.train\n" in format_torchrun(seen)
    assert "CUDA_VISIBLE_DEVICES" not in format_torchrun(seen)


def test_secrets_are_never_written() -> None:
    """Neither the nodes' nor the request's stand in any text, and each is named."""
    seen = build_plan_export(planned(*UNEVEN))
    texts = [format_torchrun(seen), *vars(format_deepspeed(seen)).values()]
    assert not [text for text in texts if "very_secret" in text]
    assert all("HF_TOKEN" in text and "WANDB_API_KEY" in text for text in (texts[0], texts[4]))


@pytest.mark.parametrize(
    "change", [{"python": "python3"}, {"workdir": "/tmp"}, {"setup": ()}, {"env": {"A": "b"}}], ids=str
)
def test_deepspeed_has_one_of_each_for_all_nodes(change: dict[str, object]) -> None:
    """Nodes that differ can't be passed through DeepSpeed, so the export is refused and torchrun's is offered."""
    other = replace(COMMON, name="gpu02", **change)  # type: ignore[arg-type]  # any field, by name
    with pytest.raises(InputError, match=f"gpu02 has a different {next(iter(change))} than gpu01") as error:
        format_deepspeed(build_plan_export(planned(COMMON, other)))
    assert "--as torchrun" in error.value.fix


def test_a_line_break_has_no_place_in_an_env_file() -> None:
    """DeepSpeed reads one variable a line, so a value of two lines is refused by the variable's name."""
    with pytest.raises(InputError, match="TWO has a line break"):
        format_deepspeed(build_plan_export(planned(replace(COMMON, env={"TWO": "a\nb"}))))


@pytest.mark.parametrize("args", [("--out", "run-%n"), ("a\nb",)], ids=["pdsh's mark", "a line break"])
def test_words_that_deepspeed_would_change(args: tuple[str, ...]) -> None:
    """What pdsh or the far shell would replace is refused, since the script would get something else."""
    with pytest.raises(InputError, match="can't be passed through DeepSpeed"):
        format_deepspeed(build_plan_export(planned(COMMON, program=replace(SCRIPT, args=args))))


def test_a_folder_that_deepspeed_would_split() -> None:
    """DeepSpeed writes `cd FOLDER;` without quotes."""
    with pytest.raises(InputError, match="'/home/me/my project' can't be passed through DeepSpeed"):
        format_deepspeed(build_plan_export(planned(replace(COMMON, workdir="/home/me/my project"))))
