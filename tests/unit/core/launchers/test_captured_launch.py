"""Launchers that a script called on a node: what the head accepts of them, and what their ranks get."""

import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launcher_texts import pasted

from aboard.config.accelerate_config import parse_accelerate_config
from aboard.core.cluster.interpreter import Interpreter, InterpreterSource
from aboard.core.cluster.node import Node
from aboard.core.launchers.capture_failures import (
    build_escape_error,
    build_missing_launcher_error,
    build_no_launcher_error,
    build_parallel_error,
)
from aboard.core.launchers.captured_launch import Capture, CapturedFiles, parse_capture, read_captured_launch
from aboard.core.launchers.captured_nodes import apply_captures, compare_captures, find_spare_problem
from aboard.core.launchers.launcher_command import LauncherCommand
from aboard.diagnoses import InputError

LAUNCH = ("aboard", "launch", "n[1-2]")
PYTHON = "/opt/venv/bin/python"


def capture(command: str, node: str = "n1", **fields: Any) -> Capture:
    argv = shlex.split(command)
    document = {"launcher": argv[0], "argv": argv, "cwd": "/home/me/project", "python": PYTHON, **fields}
    return parse_capture(document, node)


def read(command: str, **fields: Any) -> LauncherCommand:
    called = capture(command, **fields)
    return read_captured_launch(called, LAUNCH, CapturedFiles(capture=called, parse=parse_accelerate_config))


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"argv": "torchrun x.py"}, "argv: expected 1 to 32,768 words"),
        ({"argv": []}, "argv: expected 1 to 32,768 words"),
        ({"argv": ["torchrun", 1]}, "argv: expected text"),
        ({"argv": ["x"] * 40_000}, "argv: expected 1 to 32,768 words"),
        ({"argv": ["torchrun", "a\0b"]}, "argv: it has a NUL character"),
        ({"argv": ["torchrun", "\udc80"]}, "argv: it has a NUL character, or is not UTF-8"),
        ({"argv": ["x" * 200_000]}, "argv: it has 200,000 characters, and the maximum is 131,072"),
        ({"argv": ["x" * 131_072] * 9}, "argv: together they have more than 1,000,000 characters"),
        ({"env": {"A\nB": "1"}}, "A\\nB: 'A\\nB' is not a variable name"),
        ({"env": {"A": None}}, "env: A: expected text"),
        ({"env": {f"A{number}": "" for number in range(3_000)}}, "env: expected at most 2,048 variables"),
        ({"limits": {"n; x": 1}}, "limits: expected limits by their option of ulimit"),
        ({"limits": {"n": "1"}}, "limits: expected limits of at least -1"),
        ({"removed": ["a=b"]}, "removed: 'a=b' is not a variable name"),
        ({"cwd": "home"}, "cwd: 'home' is not an absolute path"),
        ({"cwd": "/a\x1b[31m"}, "cwd: '/a\\x1b[31m' is not a path"),
        ({"python": None}, "python: expected text"),
        ({"files": {"a\n": ""}}, "files: 'a\\n' is not a path"),
        ({"files": {"a": "x" * 70_000}}, "files: it has 70,000 characters, and the maximum is 65,536"),
        ({"files": dict.fromkeys(map(str, range(17)), "")}, "files: expected at most 16 files"),
        ({"line": -1}, "line: expected a number"),
    ],
)
def test_an_odd_capture_is_refused_by_node_and_field(fields: Mapping[str, Any], seen: str) -> None:
    """What a node sends can't be larger or stranger than what a launcher gets."""
    with pytest.raises(InputError) as error:
        capture("torchrun x.py", **fields)
    assert error.value.code == "capture-unusable"
    assert str(error.value.problems[0]).startswith("n1: the captured launcher is odd: ")
    assert seen in error.value.seen


def test_a_capture_that_is_no_object_is_refused() -> None:
    with pytest.raises(InputError, match="n1: the captured launcher is odd: expected an object"):
        parse_capture(["torchrun"], "n1")


def test_functions_that_a_shell_exported_are_no_variables() -> None:
    """Environment modules export such functions, and no other program accepts their names."""
    got = capture("torchrun x.py", env={"BASH_FUNC_module%%": "() {  :;\n}", "A": "1"}, removed=["BASH_FUNC_ml%%", "B"])
    assert (got.env, got.removed) == ({"A": "1"}, ("B",))


def test_ranks_get_what_the_script_set_and_the_launcher_over_it() -> None:
    """Not what Aboard sets for each of them; devices become slots; the directory and Python are the script's."""
    env = {"NCCL_DEBUG": "INFO", "RANK": "0", "NODE_RANK": "0", "NNODES": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    more = {"CUDA_VISIBLE_DEVICES": "2,3", "ACCELERATE_MIXED_PRECISION": "no", "ABOARD_CAPTURE": "/x", "PWD": "/y"}
    got = read("accelerate launch --mixed_precision bf16 --num_processes 4 --num_machines 2 x.py", env=env | more)
    assert (got.env["NCCL_DEBUG"], got.env["ACCELERATE_MIXED_PRECISION"]) == ("INFO", "bf16")
    assert not got.env.keys() & {*env.keys() - {"NCCL_DEBUG"}, "CUDA_VISIBLE_DEVICES", "ABOARD_CAPTURE", "PWD"}
    assert (got.picked, got.nodes, got.ranks) == ((2, 3), 2, 2)
    assert (got.workdir, got.python, got.per_node) == ("/home/me/project", PYTHON, True)


def test_deepspeed_sends_some_variables_to_its_nodes() -> None:
    """As DeepSpeed's own launcher, with a note on the others; without a hostfile ranks get all."""
    files = {"configs/hostfile": "n1 slots=8\n", ".deepspeed_env": "NCCL_ALGO=Ring\nNCCL_DEBUG=WARN\n"}
    env = {"NCCL_DEBUG": "INFO", "LR": "3", "PYTHONPATH": "/lib"}
    got = read("deepspeed --hostfile configs/hostfile x.py", env=env, files=files)
    assert got.env == {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring", "PYTHONPATH": "/home/me/project:/lib"}
    assert got.notes[-1] == "deepspeed doesn't send LR to ranks: list them in .deepspeed_env."
    assert not got.per_node
    assert read("deepspeed x.py", env=env).env == env
    own = read("deepspeed --no_ssh --node_rank 0 --hostfile hosts x.py", env=env, files={"hosts": "n1 slots=2"})
    assert own.per_node
    assert own.env == env


def test_accelerate_reads_the_node_s_own_config_file() -> None:
    """Its usual one, or where the command says, from the script's directory."""
    text = "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\n"
    got = read("accelerate launch x.py", files={"~/.cache/huggingface/accelerate/default_config.yaml": text})
    assert (got.nodes, got.ranks, got.env["ACCELERATE_USE_FSDP"]) == (2, 8, "true")
    for name in ("../a.yaml", "/home/me/a.yaml"):
        assert read("accelerate launch --config_file ../a.yaml x.py", files={name: text}).ranks == 8
    with pytest.raises(InputError, match="n1 has no such file") as error:
        read("accelerate launch --config_file a.yaml x.py")
    assert error.value.code == "capture-unusable"


HOSTS = {"configs/hostfile": "w-0 slots=8\nw-1 slots=8\n"}
DEEPSPEED_ENV = {"~/.deepspeed_env": "NCCL_BUFFSIZE=2097152\n", "./.deepspeed_env": "NCCL_ALGO=Ring\n"}
FSDP = (Path(__file__).parents[2] / "golden" / "paste" / "env" / "fsdp1.yaml").read_text("utf-8")
LMFLOW = (
    "deepspeed --master_port=11000 --master_addr=100.100.100.1 --include=100.100.100.1:0,1@100.100.100.2:0,1"
    " --hostfile=configs/hostfile examples/finetune.py --deepspeed configs/ds_config_zero3.json --fp16"
)


@pytest.mark.parametrize(
    ("argv", "env", "files"),
    [
        # What the scripts of guides call, with what they export.
        (
            "deepspeed --hostfile configs/hostfile train.py --lr 3 --name 'a b'",
            {"NCCL_DEBUG": "WARN", "PYTHONPATH": "/lib"},
            HOSTS | DEEPSPEED_ENV,
        ),
        (LMFLOW, {"NCCL_SOCKET_IFNAME": "eth0"}, HOSTS),
        ("deepspeed train.py", {}, {"/job/hostfile": "w-0 slots=8\n"}),
        ("torchrun --nproc-per-node 2 x.py", {"A": "1"}, {}),
        # What front ends call: swift, axolotl and deepy.py.
        (
            "torchrun --nproc_per_node 8 --master_port 1234 --nnodes 2 --node_rank 0 --master_addr n1 /p/cli/sft.py",
            {"MODELSCOPE_CACHE": "/c"},
            {},
        ),
        (
            "accelerate launch --config_file fsdp1.yaml -m axolotl.cli.train c.yml",
            {"HF_HOME": "/d"},
            {"fsdp1.yaml": FSDP},
        ),
        ("deepspeed --num_nodes 2 --hostfile configs/hostfile train.py --deepspeed_config e30=", {}, HOSTS),
        # The older launcher, with flags from variables, and slots by number.
        (
            "python -m torch.distributed.launch --use_env x.py",
            {"PET_NNODES": "2", "CUDA_VISIBLE_DEVICES": "2,3"},
            {},
        ),
    ],
)
def test_a_captured_launcher_asks_for_what_it_would_ask_for_if_it_was_pasted(
    argv: str, env: Mapping[str, str], files: Mapping[str, str]
) -> None:
    """Its node's directory and Python come with it."""
    got = read(argv, env=env, files=files)
    if got.hostfile is None:
        typed = shlex.join([*(f"{name}={value}" for name, value in env.items()), *shlex.split(argv)])
        want = pasted(typed, files=files)
    else:  # ranks get what deepspeed exports
        want = pasted(argv, files=files, environ=env)
        want = replace(want, hostfile=posixpath.join("/home/me/project", want.hostfile or ""))
    assert got == replace(want, workdir="/home/me/project", python=PYTHON)


@pytest.mark.parametrize("command", ["bash run.sh", "python x.py", "srun -N1 x.py", "docker run i x.py"])
def test_other_words_are_no_launcher(command: str) -> None:
    """A node can't make the head start anything else."""
    with pytest.raises(InputError) as error:
        read(command)
    assert error.value.code == "capture-unusable"


def test_what_the_script_unset_is_unset_for_ranks() -> None:
    """By a line before the program; Aboard's own variables stay."""
    got = read("torchrun x.py", removed=["NCCL_DEBUG", "HTTP_PROXY", "MASTER_ADDR", "OMP_NUM_THREADS"])
    assert got.setup == ("unset NCCL_DEBUG HTTP_PROXY",)
    files = {"h": "n1 slots=8\n"}
    assert read("deepspeed --hostfile h x.py", removed=["NCCL_DEBUG"], files=files).setup == ()


def test_ranks_get_the_limits_that_the_script_set() -> None:
    """As from torchrun; deepspeed starts them over ssh, where they have those of a login."""
    got = read("torchrun x.py", limits={"n": 65536, "l": -1})
    assert got.setup == ("ulimit -S -l unlimited", "ulimit -S -n 65536")
    assert read("deepspeed --hostfile h x.py", limits={"n": 1}, files={"h": "n1 slots=8\n"}).setup == ()


def read_two(first: str, second: str, *envs: Mapping[str, str]) -> Mapping[str, LauncherCommand]:
    one, two = envs or ({}, {})
    return {"n1": read(first, env=one), "n2": read(second, node="n2", env=two)}


@pytest.mark.parametrize(
    ("first", "second", "seen"),
    [
        ("-- x.py", "-- y.py", "the script is 'y.py', but 'x.py' on n1"),
        ("--nproc 8 x.py", "--nproc 4 x.py", "the number of ranks on each node is '4', but '8' on n1"),
        ("--nnodes 2 x.py", "x.py", "the number of nodes is not given, but '2' on n1"),
        ("--max-restarts 3 x.py", "x.py", "the number of restarts is '0', but '3' on n1"),
        ("x.py --seed 1 --lr 2", "x.py --seed 3 --lr 2", "--seed is '3', but '1' on n1"),
        ("x.py --out=a", "x.py --out=b", "--out is 'b', but 'a' on n1"),
        ("x.py a b", "x.py a", "argument 2 of the script is not given, but 'b' on n1"),
        ("x.py --fp16", "x.py --bf16", "argument 1 of the script is '--bf16', but '--fp16' on n1"),
        ("x.py --a --b", "x.py --a c", "argument 2 of the script is 'c', but '--b' on n1"),
        ("x.py --api_key=hunter22a", "x.py --api_key=hunter22b", "--api_key is '[secret]', but '[secret]' on n1"),
        ("x.py --api-key hunter22a", "x.py --api-key hunter22b", "--api-key is '[secret]', but '[secret]' on n1"),
        ("x.py 'a\x1b[31m'", "x.py b", "argument 1 of the script is 'b', but 'a\\x1b[31m' on n1"),
    ],
)
def test_arguments_that_differ_between_nodes(first: str, second: str, seen: str) -> None:
    """The node, the argument and both values are named, secrets are not."""
    problem = compare_captures(read_two(f"torchrun {first}", f"torchrun {second}"))
    assert problem is not None
    assert str(problem) == f"n2: {seen}"
    assert problem.fix


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("--nnodes 2 --node-rank 0 x.py", "--nnodes 2 --node_rank=1 x.py"),
        ("--node-rank 0 x.py", "--node-rank 0 x.py"),
        ("--master-addr n1 --master-port 29500 x.py", "--master-addr localhost --master-port 31000 x.py"),
        ("--rdzv-id 123 --rdzv-endpoint n1:1 --log-dir /tmp/n1 x.py", "--rdzv-id 77 --rdzv-endpoint n2:1 x.py"),
    ],
)
def test_a_node_s_rank_and_address_may_differ(first: str, second: str) -> None:
    """Aboard assigns both, whatever each script says."""
    by_node = read_two(f"torchrun {first}", f"torchrun {second}")
    assert compare_captures(by_node) is None
    if "--node-rank" in first:
        assert "--node-rank is not needed: Aboard assigns it to each node." in by_node["n1"].notes


@pytest.mark.parametrize(
    ("first", "second", "seen"),
    [
        ({"SEED": "17"}, {"SEED": "42"}, "SEED is '42', but '17' on n1"),
        ({"RUN": "a-1763521200"}, {"RUN": "a-1763521201"}, "RUN is 'a-1763521201', but 'a-1763521200' on n1"),
        ({"NCCL_ALGO": "Ring"}, {}, "NCCL_ALGO is not set, but 'Ring' on n1"),
        ({"OUTPUT_PATH": "/a"}, {"OUTPUT_PATH": "/b"}, "OUTPUT_PATH is '/b', but '/a' on n1"),
        (
            {"WANDB_API_KEY": "abcdef0"},
            {"WANDB_API_KEY": "abcdef1"},
            "WANDB_API_KEY is '[secret]', but '[secret]' on n1",
        ),
        ({"LR": "1"}, {"LR": "2"}, "LR is '2', but '1' on n1"),
        ({"LOG": "/l/gpu-1"}, {"LOG": "/l/gpu-2"}, "LOG is '/l/gpu-2', but '/l/gpu-1' on n1"),
    ],
)
def test_variables_that_differ_between_nodes(first: Mapping[str, str], second: Mapping[str, str], seen: str) -> None:
    """Ranks read them, so that two values would be two trainings."""
    problem = compare_captures(read_two("torchrun x.py", "torchrun x.py", first, second))
    assert str(problem) == f"n2: {seen}"


def test_a_variable_may_hold_the_launcher_s_command() -> None:
    """With the node's own rank, and nothing else that differs."""
    envs = [{"CMD": f"torchrun --node_rank {rank} --x 1", "L": f"a --machine_rank={rank}"} for rank in (0, 1)]
    assert compare_captures(read_two("torchrun x.py", "torchrun x.py", *envs)) is None
    envs = [{"CMD": f"torchrun --node_rank {rank} --seed {rank}"} for rank in (0, 1)]
    assert compare_captures(read_two("torchrun x.py", "torchrun x.py", *envs)) is not None


def test_a_node_s_own_hostname_may_differ() -> None:
    """Also where the nodes were named otherwise, as by their addresses; with and without its domain."""
    envs = [{"LOG": f"/l/gpu-{number}/x", "NODE": f"gpu-{number}.x.org"} for number in (1, 2)]
    hosts = {"n1": "gpu-1.x.org", "n2": "gpu-2.x.org"}
    assert compare_captures(read_two("torchrun x.py", "torchrun x.py", *envs), hosts) is None


def test_a_node_s_own_variables_go_to_its_own_ranks() -> None:
    """What describes a node may differ; directory, Python and slots are each node's, too."""
    alike = {"NCCL_DEBUG": "INFO", "MODULEPATH": "/m"}
    one = {"NCCL_SOCKET_IFNAME": "eth0", "MACHINE": "0", "IP": "10.0.0.1", "LOG": "/l/n1.d", "PATH": "/home/a/bin:/bin"}
    two = {"NCCL_SOCKET_IFNAME": "ib0", "MACHINE": "1", "IP": "10.0.0.2", "LOG": "/l/n2.d", "TMPDIR": "/tmp/x"}
    devices = [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    by_node = {
        "n1": read("torchrun --nproc 2 x.py", env=alike | one | devices[0]),
        "n2": read(
            "torchrun --nproc 2 x.py", node="n2", env=alike | two | devices[1], cwd="/w", python="/usr/bin/python3"
        ),
    }
    assert compare_captures(by_node) is None
    found = Interpreter(path="python3", origin=InterpreterSource.LOGIN_SHELL, env={"VIRTUAL_ENV": "/v"})
    nodes = [
        Node(name=name, interpreter=found, setup=("module load x",), env={"A": "1"}) for name in ("n1", "n2", "n3")
    ]
    request, changed = apply_captures(nodes, by_node)
    assert request.env == alike
    assert [node.env for node in changed] == [{"A": "1", **one}, {"A": "1", **two}, {"A": "1", **one}]
    assert [(node.workdir, node.rank_python, node.picked, node.setup) for node in changed] == [
        ("/home/me/project", PYTHON, (0, 1), ()),
        ("/w", "/usr/bin/python3", (2, 3), ()),
        ("/home/me/project", PYTHON, (0, 1), ()),
    ]
    assert changed[0].interpreter is not None
    assert changed[0].interpreter.env == {"VIRTUAL_ENV": "/v"}
    assert apply_captures(nodes, {"n1": read("torchrun x.py", python="")})[1][0].interpreter is found


def test_a_spare_can_t_replace_what_each_node_s_script_has_set() -> None:
    """Ranks on it would get the first node's value: the launch is refused with the names of the variables."""
    by_node = {node: read("torchrun --nnodes 2 x.py", node=node, env={"A": "1", "NODE": node}) for node in ("n1", "n2")}
    problem = find_spare_problem(by_node, ["n3"])
    assert problem is not None
    assert str(problem) == "n3: it runs no script, which sets NODE to another value on each node"
    assert "remove NODE from the script" in str(problem.fix)
    alone = {"n1": read("torchrun x.py", env={"TMPDIR": "/scratch"}), "n2": read("torchrun x.py", node="n2")}
    assert compare_captures(alone) is None
    assert str(find_spare_problem(alone, ["n3"])).startswith("n3: it runs no script, which sets TMPDIR")
    assert find_spare_problem(by_node, []) is None
    assert find_spare_problem({"n1": by_node["n1"]}, ["n3"]) is None


FIRST = capture("torchrun --nnodes 2 a.py", script="run.sh", line=14)
SECOND = capture("torchrun b.py --api-key hunter22a", script="run.sh", line=15)
WORDS = ["bash", "run.sh", "a b"]
NO_CAPTURE = "aboard launch 'n[1-2]' --no-capture -- bash run.sh 'a b'"


@pytest.mark.parametrize(
    ("error", "seen", "fix"),
    [
        (
            build_no_launcher_error("n1", WORDS, "ended with exit code 0", LAUNCH),
            "n1: bash run.sh 'a b' ended with exit code 0, and called no launcher",
            f"if each rank should run it: {NO_CAPTURE}",
        ),
        (
            build_no_launcher_error("n1", WORDS, "ended with exit code 3", LAUNCH),
            "n1: bash run.sh 'a b' ended with exit code 3, and called no launcher",
            f"read its output, which is above; if each rank should run it: {NO_CAPTURE}",
        ),
        (
            build_missing_launcher_error("n2", "ended with exit code 0", FIRST),
            "n2: the script ended with exit code 0, and called no launcher; on n1, run.sh, line 14, calls torchrun",
            "let the script call the launcher on each node",
        ),
        (
            build_parallel_error(FIRST, SECOND),
            "n1: run.sh, line 15, calls torchrun b.py --api-key '[secret]', while run.sh, line 14, calls torchrun",
            "in place of a loop over nodes, write one srun for all of them; for several training runs, remove the &",
        ),
        *(
            (
                build_escape_error("n1", ["torchrun", "x.py"], why),
                f"n1: torchrun x.py was started in a way that Aboard can't replace ({why}), and was ended",
                fix,
            )
            for why, fix in (
                ("Python's option -I ignores PYTHONPATH", "remove Python's options -I, -E and -S"),
                ("PYTHONPATH was replaced", "export PYTHONPATH=$PWD:$PYTHONPATH"),
                ("it runs in a container", "aboard launch -- apptainer exec IMAGE torchrun"),
                ("its environment was emptied; it can't be killed", "remove env -i before it"),
                ("it runs as root", "remove sudo before it"),
                ("it did not run Aboard's sitecustomize module", "call it by its name"),
                ("it is not the srun of PATH, or PATH was replaced", "call it as srun, without its path"),
            )
        ),
        (
            build_escape_error("n1", ["/usr/bin/ssh", "n2", "torchrun x.py"], "it is not the ssh of PATH, or PATH was"),
            "n1: /usr/bin/ssh n2 'torchrun x.py' was started in a way that Aboard can't replace",
            "once in the script, without ssh",
        ),
    ],
)
def test_scripts_whose_launcher_was_not_replaced(error: InputError, seen: str, fix: str) -> None:
    """Each error names the node, what was seen there, and what to type."""
    assert seen in error.seen
    assert fix in error.fix


def test_what_starts_ranks_elsewhere_is_refused() -> None:
    """With its command, without secrets, and what to call instead."""
    with pytest.raises(InputError) as caught:
        read("ssh n2 'torchrun x.py' --api-key hunter22a")
    assert caught.value.diagnosis.code == "capture-escaped"
    assert "ssh n2 'torchrun x.py' --api-key '[secret]' would start ranks by itself" in caught.value.seen
    assert "without ssh" in caught.value.fix
