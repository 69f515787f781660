"""Commands that would start a launcher in every rank: refused before anything starts, with what to type."""

import shlex

import pytest
from launcher_texts import TextFiles, pasted

from aboard.core.launchers.parse_command import parse_launcher_command
from aboard.diagnoses import InputError


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        ("nohup torchrun --nproc-per-node 2 x.py", "aboard launch -d -- torchrun --nproc-per-node 2 x.py"),
        ("A=1 setsid torchrun x.py", "aboard launch -d -- A=1 torchrun x.py"),
        ("time -p torchrun x.py", "time -p aboard launch -- torchrun x.py"),
        ("timeout -k 5 1h torchrun x.py", "timeout -k 5 1h aboard launch -- torchrun x.py"),
        ("numactl -N 0 --membind=0 torchrun x.py", "aboard launch --bind -- torchrun x.py"),
        ("taskset -c 0-3 deepspeed x.py", "aboard launch --bind -- deepspeed x.py"),
        ("stdbuf -oL -e 0 torchrun x.py --name 'a b'", "aboard launch -- torchrun x.py --name 'a b'"),
        ("uv run --with wandb torchrun x.py", "uv run --with wandb aboard launch -- torchrun x.py"),
        ("conda run -n env --no-capture-output accelerate launch x.py", "conda run -n env --no-capture-output aboard"),
        ("poetry run -- torchrun x.py", "poetry run -- aboard launch -- torchrun x.py"),
        ("nsys profile -o out --trace=cuda torchrun x.py", "aboard launch -- torchrun x.py"),
        (
            "tmux new -d 'torchrun --nnodes 2 x.py'",
            "remove tmux, and detach the run: aboard launch -d -- torchrun --nnod",
        ),
        ("/usr/bin/tmux new-session -d -s run torchrun x.py", "aboard launch -d -- torchrun x.py"),
        ("screen -dmS run bash -c 'cd /x && torchrun x.py; exec bash'", "paste only the torchrun command"),
        ("A=1 screen -dm bash -c 'B=2 torchrun x.py'", "aboard launch -d -- A=1 B=2 torchrun x.py"),
        ("script -q -c 'accelerate launch x.py' log", "remove script: aboard launch -- accelerate launch x.py"),
        ("at now torchrun x.py", "aboard launch -d -- torchrun x.py"),
        ("dtach -n /tmp/s srun -N 2 torchrun x.py", "aboard launch -d -- srun -N 2 torchrun x.py"),
        ("systemd-run --user -p MemoryMax=1G --scope torchrun x.py", "aboard launch -d -- torchrun x.py"),
        (
            "systemd-run python -m torch.distributed.run x.py",
            "aboard launch -d -- python -m torch.distributed.run x.py",
        ),
        ("parallel torchrun x.py ::: 1 2", "remove parallel: aboard launch -- torchrun x.py"),
        ("parallel 'torchrun x.py {}' ::: 1 2", "paste only the torchrun command"),
        ("xargs -n 1 torchrun x.py", "remove xargs: aboard launch -- torchrun x.py"),
        ("tmux new -d 'docker run img torchrun x.py'", "aboard launch -d -- docker run img torchrun x.py"),
        ('tmux new -d "torchrun x.py --name \'a"', "paste only the torchrun command"),
        ("exec torchrun x.py", "aboard launch -- torchrun x.py"),
        ("nohup python -u -X faulthandler -m torch.distributed.run x.py", "-- python -u -X faulthandler -m torch.dist"),
        ("nohup nice -n 5 torchrun x.py", "remove nice: aboard launch -- torchrun x.py"),
        (
            "bash -c 'A=1 torchrun --nproc-per-node 2 x.py'",
            "write the torchrun or accelerate launch command that bash starts",
        ),
        (
            "sh -c '[ -d data ] && nohup torchrun x.py'",
            "write the torchrun or accelerate launch command that sh starts",
        ),
        (
            "axolotl train c.yml",
            "in Slurm jobs and containers, write the torchrun or accelerate launch command that axolotl starts",
        ),
        ("python -m axolotl.cli.main train c.yml", "the torchrun or accelerate launch command that axolotl starts"),
        ("uv run axolotl train c.yml", "uv run aboard launch -- axolotl train c.yml"),
        ("tmux new -d 'A=1 axolotl train c.yml'", "aboard launch -d -- A=1 axolotl train c.yml"),
        (
            "mpirun -np 2 python x.py --lr 1",
            "if the script reads RANK and WORLD_SIZE, as torch.distributed does: aboard",
        ),
        ("composer -n 8 x.py --lr 1", "aboard launch -- torchrun --nproc-per-node gpu x.py --lr 1"),
        ("torchx run dist.ddp -j 1x2 --script x.py", "aboard launch -- torchrun --nproc-per-node gpu x.py"),
        ("ray job submit -- python x.py", "start it with ray itself"),
        ("horovodrun -np 4 python x.py", "start it with horovodrun itself"),
    ],
)
def test_a_command_that_would_start_a_launcher_in_every_rank(command: str, fix: str) -> None:
    """Each rank would start a run of its own, so it is refused with the command to type."""
    with pytest.raises(InputError) as error:
        pasted(command)
    assert error.value.code == "paste-wrapped"
    assert fix in error.value.fix


@pytest.mark.parametrize(
    "command",
    [
        "numactl -N 0 --membind 0 python train.py",
        "nohup python train.py --launcher accelerate",
        "timeout 60 torchrun.py",
        "timeout torchrun python train.py",
        "time ./train --backend deepspeed",
        "uv run train.py --tool torchrun",
        "uv pip install torchrun",
        "conda run -n torchrun python train.py",
        "nsys profile -o torchrun python train.py",
        "nsys stats torchrun",
        "env -u torchrun python train.py",
        "bash -c 'python train.py --launcher torchrun'",
        "bash -c 'if [ -d a ]; then echo torchrun; fi; python train.py'",
        "python -m axolotl.cli.train c.yml",
        "python train.py -m axolotl.cli.main train",
        "axolotl preprocess c.yml",
        "llamafactory-cli export c.yaml",
        "ray status",
        "tmux new -d 'python train.py --launcher torchrun --x 1'",
        "xargs python train.py --backend deepspeed --x 1",
        "./script torchrun x.py",
        "xargs docker rm img",
        "script -c 'echo torchrun' log",
        "train.py mpirun",
    ],
)
def test_a_program_that_only_looks_like_one(command: str) -> None:
    """Where no launcher is started, the ranks run the command as it is."""
    assert parse_launcher_command(shlex.split(command), TextFiles({})) is None


_TYPED = ("aboard", "launch", "n1", "n[2-3]", "--set", "cluster.env.A=1", "--check", "none")


@pytest.mark.parametrize(
    ("command", "option", "rest"),
    [
        ("nohup torchrun x.py", " -d", "torchrun x.py"),
        ("numactl -N 0 torchrun x.py", " --bind", "torchrun x.py"),
        ("timeout 60 torchrun x.py", "", "torchrun x.py"),
        ("nice torchrun x.py", "", "torchrun x.py"),
        ("nsys profile torchrun x.py", "", "torchrun x.py"),
        ("ssh n1 torchrun x.py", "", "torchrun x.py"),
        ("mpirun -np 2 x.py", "", "x.py"),
        ("composer x.py", "", "torchrun --nproc-per-node gpu x.py"),
    ],
)
def test_the_command_to_type_keeps_the_nodes_and_options(command: str, option: str, rest: str) -> None:
    """Without them it would train on this machine alone."""
    with pytest.raises(InputError) as error:
        pasted(command, launch=_TYPED)
    assert error.value.fix.endswith(f"aboard launch n1 'n[2-3]' --set cluster.env.A=1 --check none{option} -- {rest}")


def test_an_option_that_is_already_typed_is_not_repeated() -> None:
    """The user may have detached the run as well."""
    with pytest.raises(InputError) as error:
        pasted("nohup torchrun x.py", launch=("aboard", "launch", "--detach", "n1"))
    assert error.value.fix.endswith(": aboard launch --detach n1 -- torchrun x.py")
