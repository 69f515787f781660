"""deepspeed and torchrun commands, and what stands around them."""

import pytest
from launcher_texts import TextFiles, pasted

from aboard.core.cluster.node import Node
from aboard.core.launchers.deepspeed_exports import collect_exported_env
from aboard.core.launchers.node_selection import select_nodes
from aboard.core.launchers.parse_command import parse_launcher_command
from aboard.core.plan.program import ProgramKind
from aboard.diagnoses import InputError

NODES = tuple(Node(name=f"w{number}", slots=4) for number in range(3))


@pytest.mark.parametrize("words", [[], ["train.py"], ["python", "train.py"], ["python", "-m", "pkg"], ["A=b"], ["env"]])
def test_a_script_is_no_launcher(words: list[str]) -> None:
    """None means: these words are the program itself."""
    assert parse_launcher_command(words, TextFiles({})) is None


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("torchrun --nproc-per-node 2 x.py", "torchrun"),
        ("/opt/venv/bin/torchrun --nproc-per-node 2 x.py", "torchrun"),
        ("python -m torch.distributed.run --nproc_per_node 2 x.py", "torchrun"),
        ("python3.11 -u -X dev -m torch.distributed.launch --nproc_per_node 2 x.py", "torch.distributed.launch"),
        ("ds --num_gpus 2 x.py", "deepspeed"),
        ("python -m deepspeed.launcher.runner --num_gpus 2 x.py", "deepspeed"),
        ("accelerate launch --num_processes 2 x.py", "accelerate launch"),
        ("accelerate-launch --num_processes 2 x.py", "accelerate launch"),
        ("python -m accelerate.commands.launch --num_processes 2 x.py", "accelerate launch"),
        ("env NCCL_DEBUG=INFO torchrun --nproc-per-node 2 x.py", "torchrun"),
    ],
)
def test_launchers_are_known_by_all_their_names(command: str, launcher: str) -> None:
    """However the launcher is called, its flags are read: two ranks on each node here."""
    got = pasted(command)
    assert (got.launcher, got.ranks, got.request.program.target) == (launcher, 2, "x.py")


def test_what_is_behind_the_script_is_the_scripts() -> None:
    """Flags that look like the launcher's go to the script untouched once it is named."""
    got = pasted("deepspeed x.py --num_gpus 3 --unknown -- 'a b' --hostfile=h")
    assert got.request.program.args == ("--num_gpus", "3", "--unknown", "--", "a b", "--hostfile=h")
    assert (got.ranks, got.hostfile) == (None, None)


@pytest.mark.parametrize(
    ("flags", "seen", "fix"),
    [
        ("--num_gpuss 8", "--num_gpuss is not a flag for deepspeed", "did you mean '--num_gpus'?"),
        ("--num-gpus 8", "--num-gpus is not a flag for deepspeed", "did you mean '--num_gpus'?"),
        ("--wibble", "--wibble is not a flag for deepspeed", "put the script's flags after the script"),
        ("--master_addr --master_port 5", "its value is missing", "that variable is empty"),
        ("--num_gpus two", "'two' is not a whole number", "write a whole number after --num_gpus"),
        ("--module=yes", "it takes no value", "write --module"),
        ("--launcher SLURM", "can't use a different launcher", "uses the nodes of the job"),
        ("--launcher_args '-x A'", "options of pdsh or MPI", "remove --launcher_args"),
        ("--elastic_training", "refuses a smaller world size than requested", "remove --elastic_training"),
        ("--autotuning run", "the autotuner starts its own runs", "tune with deepspeed itself"),
        ("--num_nodes 2 --include w0", "can't be used with --include", "remove --num_nodes"),
        ("--module --no_python", "both as a Python module and without Python", "remove one"),
        ("--master_port 70000", "70000 is not a port", "Aboard chooses one"),
        ("--master_addr -x=1", "its value is missing", "write --master_addr VALUE"),
        ("--master_addr a/b", "is not a hostname", "--master_addr"),
        ("-h", "prints help and starts nothing", "deepspeed --help"),
    ],
)
def test_deepspeed_refusals(flags: str, seen: str, fix: str) -> None:
    """What can't be obeyed is refused by name, with the reason and what to type."""
    with pytest.raises(InputError) as error:
        pasted(f"deepspeed {flags} x.py")
    assert seen in error.value.seen
    assert fix in error.value.fix


def test_all_refusals_at_once() -> None:
    """Every flag that can't be obeyed is reported, not the first only."""
    with pytest.raises(InputError) as error:
        pasted("deepspeed --launcher openmpi --autotuning tune --ssh_port x x.py")
    assert [problem.where for problem in error.value.problems] == [
        "deepspeed --launcher openmpi",
        "deepspeed --autotuning tune",
        "deepspeed --ssh_port",
    ]


def test_no_script_is_an_error() -> None:
    """A launcher without a script has nothing to run."""
    with pytest.raises(InputError, match="has no script"):
        pasted("deepspeed --num_gpus 2")


def test_argparse_spellings() -> None:
    """`=`, attached short values, unambiguous shortened flags and negative numbers are read as argparse does."""
    got = pasted("deepspeed -Hhosts -i=w0 --master_por 5 --num_gpus -1 -- x.py")
    assert (got.hostfile, got.include, got.request.master_port, got.ranks) == ("hosts", "w0", 5, None)


def test_an_ambiguous_short_form_is_unknown() -> None:
    """`--num_` may be two flags, so it is none."""
    with pytest.raises(InputError, match="--num_ is not a flag"):
        pasted("deepspeed --num_ 2 x.py")


def test_deepspeed_tells_the_local_rank_unless_told_not_to() -> None:
    """Its scripts get --local_rank=N, which --no_local_rank stops; --module and --no_python say what is run."""
    assert pasted("deepspeed x.py").request.program.local_rank
    assert not pasted("deepspeed --no_local_rank x.py").request.program.local_rank
    assert pasted("deepspeed --module pkg.x").request.program.kind is ProgramKind.MODULE
    assert pasted("deepspeed --no_python ./x").request.program.kind is ProgramKind.PROGRAM


def test_deepspeed_node_settings() -> None:
    """The virtual environment, the ssh port and the binding of the old command are kept."""
    got = pasted("deepspeed --venv_script /v/activate --ssh_port 2222 --bind_cores_to_rank x.py")
    assert got.request.bind
    assert [(node.setup, node.port) for node in select_nodes(got, NODES)] == [(("source /v/activate",), 2222)] * 3


def test_the_default_hostfile_counts_when_it_is_there() -> None:
    """As in deepspeed, /job/hostfile is read when no other is named."""
    there = {"/job/hostfile": "w0 slots=4\n"}
    assert pasted("deepspeed x.py", files=there).hostfile == "/job/hostfile"
    assert pasted("deepspeed -H mine x.py", files=there).hostfile == "mine"
    assert pasted("deepspeed x.py").hostfile is None


def test_deepspeed_env_files() -> None:
    """The one here wins over the one at home, both over what is exported; on one machine none of it is read."""
    files = {"~/.deepspeed_env": "A=1\nNCCL_DEBUG=WARN\n", "./.deepspeed_env": "A=2\n", "h": ""}
    environ = {"NCCL_DEBUG": "INFO", "PYTHONPATH": "/lib", "HOME": "/h"}
    got = pasted("deepspeed --hostfile h x.py", files=files, environ=environ)
    assert got.env == {"A": "2", "NCCL_DEBUG": "WARN", "PYTHONPATH": "/home/me/project:/lib"}
    assert got.notes == (
        "Environment variables read from ~/.deepspeed_env.",
        "Environment variables read from ./.deepspeed_env.",
    )
    assert pasted("deepspeed x.py", files=files, environ=environ).env == {}


def test_ds_env_file() -> None:
    """DS_ENV_FILE names another file, which may be an absolute path."""
    files = {"/etc/ds": "A=1\n", "~/other": "B=2\n"}
    for name, env in (("/etc/ds", {"A": "1"}), ("other", {"B": "2"})):
        got = pasted("deepspeed -H h x.py", files=files, environ={"DS_ENV_FILE": name})
        assert {**env, "PYTHONPATH": "/home/me/project"} == got.env


def test_exported_names() -> None:
    """DeepSpeed's prefixes, without what differs from node to node on one cloud."""
    environ = {"NCCL_IB_HCA": "x", "UCX_TLS": "y", "MLFLOW_URI": "z", "MY_NCCL": "no", "AISC_JOB_NAME": "j"}
    assert collect_exported_env(environ, cwd="/w") == {"UCX_TLS": "y", "MLFLOW_URI": "z", "PYTHONPATH": "/w"}


def test_the_first_nodes_and_the_first_slots() -> None:
    """--num_nodes 2 of three lines are the first two, and --num_gpus 3 are slots 0, 1 and 2 of each."""
    got = pasted("deepspeed --num_nodes 2 --num_gpus 3 x.py")
    assert [(node.name, node.picked) for node in select_nodes(got, NODES)] == [("w0", (0, 1, 2)), ("w1", (0, 1, 2))]


def test_more_slots_than_there_are() -> None:
    """DeepSpeed would start ranks on GPUs that don't exist; here that is an error with the node's name."""
    with pytest.raises(InputError, match=r"w\[0-2\] has fewer than 8 slots"):
        select_nodes(pasted("deepspeed --num_gpus 8 x.py"), NODES)


def test_torchrun_takes_no_part_of_the_nodes() -> None:
    """It has no list to take the first from, so the plan is left to refuse another number of nodes."""
    assert select_nodes(pasted("torchrun --nnodes 2 --nproc-per-node 4 x.py"), NODES) == NODES


@pytest.mark.parametrize(
    ("flags", "nodes", "ranks", "address", "port"),
    [
        ("", None, 1, None, None),
        ("--standalone --nproc-per-node gpu", 1, None, None, None),
        ("--nnodes 2 --nproc_per_node auto", 2, None, None, None),
        ("--nnodes=2:2 --nproc-per-node=8", 2, 8, None, None),
        ("--nproc 4 --master-addr 127.0.0.1 --master-port 0", None, 4, None, None),
        ("--nproc 4 --master_addr [fd00::1] --master_port 9", None, 4, "fd00::1", 9),
        ("--nproc 4 --rdzv-backend c10d --rdzv-endpoint n1:29400", None, 4, "n1", 29400),
        ("--nproc 4 --rdzv-backend=c10d --rdzv-endpoint=localhost:0", None, 4, None, None),
        ("--nproc 4 --rdzv_endpoint [fd00::1]:5", None, 4, "fd00::1", 5),
        ("--nproc 4 --rdzv-backend etcd-v2 --rdzv-endpoint etcd:2379", None, 4, None, None),
        ("--nproc 4 --standalone --rdzv-endpoint n1:5", 1, 4, None, None),
    ],
)
def test_torchrun_sizes_and_master(
    flags: str, nodes: int | None, ranks: int | None, address: str | None, port: int | None
) -> None:
    """Nodes, ranks and master as torchrun understands them; loopback, port 0 and etcd leave the choice to Aboard."""
    got = pasted(f"torchrun {flags} x.py")
    assert (got.nodes, got.ranks, got.request.master_address, got.request.master_port) == (nodes, ranks, address, port)


@pytest.mark.parametrize(
    ("flags", "seen"),
    [
        ("--nnodes 1:4", "1:4 is elastic"),
        ("--nnodes two", "'two' is not a number of nodes"),
        ("--nnodes 2 --standalone", "it is for one node"),
        ("--nproc-per-node cpu", "the core count of each node is unknown"),
        ("--nproc-per-node 0", "'0' is not a number of ranks"),
        ("--max-restarts often", "is not a whole number"),
        ("--numa-binding exclusive", "'exclusive' is not supported"),
        ("--virtual-local-rank", "LOCAL_RANK is always the rank's number on its node"),
        ("--signals-to-handle SIGUSR1", "forwards only SIGTERM and SIGINT"),
        ("--rdzv-endpoint n1:x", "'n1:x' is not HOST:PORT"),
        ("--rdzv-endpoint a:b:c", "is not an IPv6 address"),
        ("--use-env", "--use-env is not a flag for torchrun"),
    ],
)
def test_torchrun_refusals(flags: str, seen: str) -> None:
    """What can't be obeyed is refused, with what to type."""
    with pytest.raises(InputError) as error:
        pasted(f"torchrun {flags} x.py")
    assert seen in error.value.seen
    assert error.value.fix


def test_torchrun_defaults_are_fine() -> None:
    """Flags that say what is so in any case are neither refused nor noted."""
    assert pasted("torchrun --max-restarts 3 x.py").request.restarts == 3
    got = pasted("torchrun --max_restarts=0 --event-log-handler null --numa-binding node --nproc-per-node 2 x.py")
    assert got.notes == ()
    assert got.request.bind


def test_torchrun_flags_from_the_environment() -> None:
    """PET_ variables stand for flags that aren't typed, as Kubeflow sets them."""
    environ = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_STANDALONE": "0"}
    got = pasted("torchrun --nproc-per-node 4 x.py", environ=environ)
    assert (got.nodes, got.ranks) == (2, 4)


def test_torch_launch_tells_the_local_rank() -> None:
    """The older launcher hands the local rank over as an argument, unless --use-env is given."""
    got = pasted("python -m torch.distributed.launch --nproc-per-node 2 --role default x.py")
    assert got.request.program.local_rank == "--local-rank"
    assert [note for note in got.notes if "gets --local-rank=N" in note] == list(got.notes)
    assert not pasted("python -m torch.distributed.launch --use_env x.py").request.program.local_rank
    with pytest.raises(InputError, match="needs --use-env"):
        pasted("python -m torch.distributed.launch --no_python x")


def test_variables_in_front_of_the_command() -> None:
    """They reach every rank; devices named there are the slots, unless the flags name some."""
    got = pasted("CUDA_VISIBLE_DEVICES=2,3 NCCL_DEBUG=INFO torchrun --nproc-per-node 2 x.py")
    assert (got.env, got.picked) == ({"NCCL_DEBUG": "INFO"}, (2, 3))
    got = pasted("CUDA_VISIBLE_DEVICES=2,3 deepspeed --num_gpus 1 x.py")
    assert (got.env, got.picked) == ({}, (0,))
    assert got.notes == ("CUDA_VISIBLE_DEVICES=2,3 is not used: the launcher's flags say which slots to use.",)


@pytest.mark.parametrize(
    "command", ["accelerate test", "accelerate", "python -m accelerate.commands.accelerate_cli env"]
)
def test_other_commands_of_accelerate(command: str) -> None:
    """Only accelerate launch starts a run."""
    with pytest.raises(InputError, match="starts no run"):
        pasted(command)


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        ("mpirun -np 2 /opt/bin/deepspeed x.py", "remove mpirun: aboard launch -- /opt/bin/deepspeed x.py"),
        (
            "sudo docker run img torchrun --nnodes 2 x.py --name 'a b'",
            "remove sudo: aboard launch -- docker run img torchrun --nnodes 2 x.py --name 'a b'",
        ),
        (
            "mpirun -np 2 singularity exec a.sif torchrun x.py",
            "remove mpirun: aboard launch -- singularity exec a.sif torchrun x.py",
        ),
    ],
)
def test_wrapped_commands(command: str, fix: str) -> None:
    """A launcher inside of another starter would run once on every rank, so it is refused with what to type."""
    with pytest.raises(InputError) as error:
        pasted(command)
    assert error.value.code == "paste-wrapped"
    assert fix in error.value.fix


def test_a_shell_script_of_ones_own_is_a_program() -> None:
    """Only one that is told what to tell deepspeed is known to start it."""
    assert parse_launcher_command(["./run.sh", "--lr", "1"], TextFiles({})) is None
