"""A plan as text and as JSON: exactly what will be started, and no secret of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from run_states import PROGRAM, cluster, plan_of

from aboard.commands.launch.view.plan_view import PlanView
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.plan.plan import Plan
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.secrets.secret_names import HIDDEN
from aboard.engine.records.plan_json import format_plan_json
from aboard.engine.records.recorded_run import parse_recorded_plan

GOLDEN = Path(__file__).parents[3] / "golden" / "ui"
TOKEN = "hf_AbCdEfGh"  # noqa: S105 - nobody's
ENV = {"HF_TOKEN": TOKEN, "WANDB_PROJECT": "llama x", "URL": f"https://u:{TOKEN}@example.org", "ODD": "a\nb"}
LEAKY = Program(
    kind=ProgramKind.SCRIPT, target="train.py", args=("--token", TOKEN, "--name", "naïve"), local_rank="--local_rank"
)


def two_by_eight() -> Plan:
    """With setup lines, DeepSpeed's --local_rank, and a port that is not yet known."""
    nodes = cluster(2, slots=8, workdir="/home/crew/llama", setup=("source venv/bin/activate", "module load cuda/12"))
    made = plan_of(nodes, env=ENV, program=LEAKY)
    return replace(made, master=replace(made.master, port=0))


def uneven() -> Plan:
    """Two nodes that differ in slots, Python and variables, with ranks bound to cores."""
    first = Node(name="a", slots=4, picked=(1, 3), env={"NCCL_IB_HCA": "mlx5_0"})
    second = Node(name="b", slots=1, python="/opt/venv/bin/python")
    seat = NodeResources(address="x", interface="eth0", cores=8, memory_nodes=((0, 1, 2, 3), (4, 5, 6, 7)))
    return plan_of(Cluster(nodes=(first, second)), seat=seat, bind=True, env={"SEED": "1"})


def sixty_four() -> Plan:
    return plan_of(cluster(64, slots=8), env={"SEED": "1"})


def contained() -> Plan:
    """Ranks in a container whose options repeat a secret."""
    container = Container(
        runtime="podman",
        image="train:1",
        binds=("/data:/data:ro",),
        options=(f"--annotation={TOKEN}",),
        env={"HF_TOKEN": TOKEN},
        entry="run",
        workdir="/workspace",
    )
    nodes = cluster(2, slots=2, workdir="/home/crew/llama", setup=("module load podman",), container=container)
    return plan_of(nodes)


def format_plan_text(plan: Plan, width: int = 10_000) -> str:
    console = Console(width=width, color_system=None, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(PlanView(plan), crop=False)
    return capture.get()


PLANS = {"two": two_by_eight, "uneven": uneven, "many": sixty_four, "container": contained}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_as_text(name: str) -> None:
    """Nodes that are alike once, the contract once with each rank's own numbers as ranges, commands to be typed."""
    text = format_plan_text(PLANS[name](), 80)
    assert text == (GOLDEN / f"plan-{name}-80.txt").read_text("utf-8")
    assert len(text.splitlines()) <= 40


@pytest.mark.parametrize("name", PLANS)
def test_json_tells_each_rank_whole(name: str) -> None:
    """The plan's, the node's and the rank's parts together are what each rank gets, its secrets hidden."""
    made = PLANS[name]()
    told = json.loads(format_plan_json(made))
    assert (told["world"], told["master"]["port"]) == (made.world, made.master.port)
    ranks = [
        {"node": node["name"], **node, **start, "env": told["env"] | node["env"] | start["env"]}
        for node in told["nodes"]
        for start in node["starts"]
    ]
    for rank, (node, start) in zip(ranks, made.starts(), strict=True):
        hidden = dict.fromkeys(start.secrets, HIDDEN)
        assert rank["env"] == {key: value.replace(TOKEN, HIDDEN) for key, value in start.env.items()} | hidden
        assert rank["argv"] == [word.replace(TOKEN, HIDDEN) for word in start.argv]
        assert (rank["node"], rank["rank"], rank["child"], rank["cwd"]) == (node, start.rank, start.child, start.cwd)
        assert tuple(rank["cores"]) == start.cores


def test_no_secret_is_anywhere() -> None:
    """Neither under its name, nor in a command, nor inside another variable; that it is there is told."""
    made = two_by_eight()
    for text in (format_plan_text(made), format_plan_json(made)):
        assert TOKEN not in text
        assert "HF_TOKEN" in text


def test_a_name_that_only_some_ranks_have_is_theirs() -> None:
    """A variable of one rank is told with that rank, and not of the others."""
    made = plan_of(cluster(1, slots=2))
    first, second = made.parts[0].starts
    odd = replace(second, env={**second.env, "ONLY": "here"})
    made = replace(made, parts=(replace(made.parts[0], starts=(first, odd)),))
    text = format_plan_text(made)
    assert "  env    ONLY is not set    # local rank 0\n" in text
    assert "  env    ONLY=here    # local rank 1\n" in text
    (node,) = json.loads(format_plan_json(made))["nodes"]
    assert ["ONLY" in start["env"] for start in node["starts"]] == [False, True]


def test_the_settings_of_a_training_are_not_the_users_variables() -> None:
    """Thousands of characters of JSON are one line with the command that prints the settings."""
    text = format_plan_text(plan_of(cluster(1), env={"ABOARD_TRAINING": "x" * 1800, "SEED": "1"}))
    assert "xx" not in text
    assert "  training ABOARD_TRAINING, 1,800 characters; its settings: aboard train --print-config\n" in text
    assert "  yours    SEED=1\n" in text


def test_what_can_be_typed_means_the_same() -> None:
    """An apostrophe survives every login shell."""
    text = format_plan_text(plan_of(cluster(1, slots=1), program=PROGRAM))
    assert r"  runs   python3 train.py --lr 2e-5 --name 'it'\''s mine'" in text


@pytest.mark.parametrize("kind", TransportKind)
def test_a_record_keeps_how_nodes_were_reached(kind: TransportKind) -> None:
    """A verdict on the record suggests commands that reach them in the same way."""
    made = plan_of(Cluster(nodes=(Node(name="n1", slots=1, transport=kind),)))
    read = parse_recorded_plan(json.loads(format_plan_json(made)), "r")
    assert read is not None
    assert [part.node.transport for part in read.parts] == [kind]


def test_records_of_older_versions() -> None:
    """They say only whether a node was this machine; what else a record claims is not believed."""
    node = {"name": "n1", "starts": [{"child": "0"}]}
    for said, kind in (({"local": True}, "local"), ({"local": False}, "ssh"), ({"transport": "telnet"}, "ssh")):
        read = parse_recorded_plan({"nodes": [{**node, **said}]}, "r")
        assert read is not None
        assert read.parts[0].node.transport.value == kind
