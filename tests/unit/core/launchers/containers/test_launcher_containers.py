"""Pasted commands that start a launcher in a container."""

from pathlib import Path
from typing import Any

import pytest
from launcher_texts import pasted

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node
from aboard.core.launchers.node_selection import select_nodes
from aboard.core.plan.launch_request import resolve_request
from aboard.core.plan.program import ProgramKind
from aboard.diagnoses import InputError
from aboard.engine.request.node_arguments import NodeArguments
from aboard.engine.request.typed_launch import TypedLaunch


def container_of(command: str, **more: Any) -> Container:
    got = pasted(command, **more).container
    assert got is not None
    return got


def test_a_launcher_in_a_container() -> None:
    """The container is each rank's, and the launcher's flags are read as outside."""
    got = pasted("singularity exec --nv -B /data,/w:/work:ro a.sif torchrun --nnodes 2 --nproc-per-node 4 x.py --lr 1")
    assert (got.launcher, got.nodes, got.ranks, got.request.program.args) == ("torchrun", 2, 4, ("--lr", "1"))
    assert got.container == Container(
        runtime="singularity", image="a.sif", binds=("/data", "/w:/work:ro"), gpus="nvidia", entry="exec"
    )


def test_a_program_in_a_container_is_a_rank() -> None:
    """Without a launcher inside, each slot runs the program, with the interpreter that the command names."""
    got = pasted("apptainer run a.sif python -u train.py")
    assert (got.ranks, got.nodes, got.request.program.kind) == (None, None, ProgramKind.SCRIPT)
    assert got.container is not None
    assert (got.container.entry, got.container.python) == ("run", "python")
    assert (
        container_of("apptainer exec a.sif /opt/bin/python3 -m torch.distributed.run x.py").python == "/opt/bin/python3"
    )


def test_variables_for_inside_never_become_words() -> None:
    """Values of --env, env files and the runtime's own variables are the container's, and the later ones win."""
    got = container_of(
        "SINGULARITYENV_A=0 apptainer exec --env-file f --env A=2,B=3 --env 'C=x,y' a.sif torchrun x.py",
        files={"f": "A=1\nD=4\n"},
        environ={"APPTAINERENV_E": "5"},
    )
    assert got.env == {"A": "2", "B": "3", "C": "x,y", "D": "4", "E": "5"}
    assert got.options == ()


def test_variables_of_the_shell_outside() -> None:
    """Variables before the command reach the ranks, but not those that describe the node's own programs."""
    got = pasted("PATH=/x LD_LIBRARY_PATH=/y NCCL_DEBUG=INFO A=1 singularity exec --env A=2 a.sif torchrun x.py")
    assert got.env == {"NCCL_DEBUG": "INFO"}
    assert got.container is not None
    assert got.container.env == {"A": "2"}


def test_files_inside_are_read_where_their_binds_come_from() -> None:
    """The launcher's config is read through the binds, from the directory of --pwd or `cd`, and from --home."""
    config = "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 8\n"
    inside = "accelerate launch --config_file"
    bound = "apptainer exec --bind $PWD:/workspace --home /h:/root a.sif".replace("$PWD", "/home/me/project")
    for command, path in (
        (f"{bound} {inside} /workspace/c.yaml x.py", "/home/me/project/c.yaml"),
        (f"{bound.replace('a.sif', '--pwd /workspace/sub a.sif')} {inside} ../c.yaml x.py", "/home/me/project/c.yaml"),
        (f"{bound} {inside} ~/c.yaml x.py".replace("~/c", "'~/c").replace("yaml", "yaml'"), "/h/c.yaml"),
        (f"{bound} accelerate launch x.py", "/h/.cache/huggingface/accelerate/default_config.yaml"),
        (f"apptainer exec a.sif {inside} c.yaml x.py", "c.yaml"),
    ):
        got = pasted(command, files={path: config})
        assert (got.nodes, got.ranks) == (2, 4), command


def test_namespaces_that_ranks_must_share() -> None:
    """A contained rank keeps the node's PID and IPC namespaces and /dev/shm, where ranks exchange data."""
    got = pasted("apptainer exec --containall a.sif torchrun x.py")
    assert got.container is not None
    assert (got.container.options, got.container.binds) == (("--contain", "--cleanenv"), ("/dev",))
    assert "share memory" in got.notes[0]


def test_docker() -> None:
    """Docker's flags for GPUs, volumes and variables become the container's, and what Aboard sets is left out."""
    got = pasted(
        "docker run -it --rm --gpus '\"device=2,3\"' --ipc=host --net host --shm-size=8g --ulimit memlock=-1 -v ./d:/d"
        " -v cache:/c --mount type=bind,src=/m,dst=/n,readonly -e TOKEN -e GONE -e A=1 -p 80:80 --name n"
        " --device /dev/fuse nvcr.io/nvidia/pytorch:25.01-py3 torchrun --nproc-per-node 2 x.py",
        environ={"TOKEN": "t", "OTHER": "o"},
    )
    assert got.picked == (2, 3)
    assert got.container == Container(
        runtime="docker",
        image="nvcr.io/nvidia/pytorch:25.01-py3",
        binds=("/home/me/project/d:/d", "/m:/n:ro"),
        env={"TOKEN": "t", "A": "1"},
        options=("--ulimit", "memlock=-1", "--device", "/dev/fuse", "--volume", "cache:/c"),
        gpus="nvidia",
        workdir="",
        entry="run",
    )
    dropped = [note.split()[0] for note in got.notes]
    assert dropped == ["-i", "-t", "--shm-size", "-p", "--name"]


def test_gpus_of_docker() -> None:
    """A number of GPUs is the first slots, 0 is none, and devices of AMD are found by their names."""
    commands = ("--gpus 2", "--gpus 0", "--gpus all", "--device /dev/kfd --device /dev/dri", "", "--gpus device=1")
    got = [pasted(f"docker run {flags} img torchrun x.py") for flags in commands]
    assert [each.container and each.container.gpus for each in got] == [
        *("nvidia", "none", "nvidia", "rocm", "auto", "nvidia")
    ]
    assert [each.picked for each in got] == [(0, 1), None, None, None, None, (1,)]


def test_a_shell_that_changes_its_directory() -> None:
    """Ranks start there; a text that does more is refused."""
    got = pasted("docker run -w /w img bash -c 'cd src && torchrun --nnodes 2 x.py'")
    assert (got.launcher, got.request.program.target) == ("torchrun", "x.py")
    assert got.container is not None
    assert got.container.workdir == "/w/src"


def test_an_entry_point_is_the_first_word() -> None:
    """`--entrypoint bash` starts bash with the words behind the image; an empty one removes the image's own."""
    got = pasted("podman run --entrypoint bash -w /w img -c 'python x.py'")
    assert (got.request.program.target, got.container and got.container.entry) == ("bash", "exec")
    assert container_of("podman run --entrypoint '' img torchrun x.py").entry == "exec"


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("docker run --network bridge img torchrun x.py", "the node's own network"),
        ("docker run -d img torchrun x.py", "without Aboard"),
        ("docker exec c torchrun x.py", "docker exec starts no container"),
        ("singularity shell a.sif", "singularity shell starts no container"),
        ("singularity exec --net a.sif torchrun x.py", "the node's own network"),
        ("singularity exec --nvx a.sif torchrun x.py", "--nvx is not a flag for singularity exec"),
        ("apptainer exec instance://i torchrun x.py", "runs already"),
        ("apptainer exec --overlay o.img a.sif torchrun x.py", "write to one overlay"),
        ("apptainer run a.sif", "only the image knows"),
        ("apptainer exec --nv", "has no image"),
        ("apptainer exec --env A a.sif torchrun x.py", "no value"),
        ("docker run --gpus some img torchrun x.py", "not a list of GPU numbers"),
        ("apptainer exec a.sif docker run img torchrun x.py", "it starts docker inside"),
        ("apptainer exec a.sif srun torchrun x.py", "it starts srun inside"),
        ("docker run img bash -c 'pip install x && torchrun x.py'", "bash would start torchrun"),
        ("docker run img mpirun torchrun x.py", "mpirun starts torchrun"),
        ("apptainer exec a.sif accelerate launch --config_file /etc/c.yaml x.py", "doesn't read files of the image"),
        ("docker run img accelerate launch --config_file /etc/c.yaml x.py", "doesn't read files of the image"),
        ("apptainer exec a.sif deepspeed --venv_script v x.py", "inside the container"),
    ],
)
def test_containers_that_ranks_cannot_use(command: str, seen: str) -> None:
    """What would cut ranks off, outlive the run or mean nothing to them is refused with the reason and a fix."""
    with pytest.raises(InputError) as error:
        pasted(command, environ={"SLURM_JOB_ID": "7", "SLURM_NNODES": "1"})
    assert seen in str(error.value.problems[0])
    assert error.value.fix


def test_the_image_file_is_found_from_any_directory() -> None:
    """A relative image is in the node's working directory; the container replaces that of aboard.yaml."""
    got = pasted("singularity exec images/a.sif torchrun x.py")
    own = Container(runtime="podman", image="b")
    nodes = select_nodes(got, (Node(name="n1", container=own), Node(name="n2", workdir="/w")))
    cluster, _ = resolve_request(Cluster(nodes=nodes, source="test"), got.request, "/home/me")
    images = [node.container.image for node in cluster if node.container]
    assert images == ["/home/me/images/a.sif", "/w/images/a.sif"]


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("apptainer exec --bind .:/w --pwd /w a.sif torchrun t.py", False),
        ("apptainer exec --bind .:/w --pwd /w a.sif torchrun /w/t.py", False),
        ("apptainer exec --bind .:/w --pwd /w a.sif torchrun other.py", True),
        ("apptainer exec a.sif torchrun other.py", True),
        ("apptainer exec a.sif torchrun /app/train.py", False),
        ("docker run img torchrun other.py", False),
    ],
)
def test_a_missing_script(command: str, *, missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script is looked up where the binds take it from; one that the image may contain is not missed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").touch()
    where = NodeArguments(nodes=(), hostfile=None, include="", exclude="", sets=())
    notes = TypedLaunch(where=where, command=tuple(command.split())).check_alone()
    assert any("on this machine" in note for note in notes) == missing
