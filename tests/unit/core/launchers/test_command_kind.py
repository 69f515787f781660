"""Which way a typed command goes, decided by its words before anything runs."""

import shlex

import pytest

from aboard.core.launchers.command_kind import (
    CommandKind,
    build_script_env,
    build_script_program,
    choose_kind,
    uses_front_end,
)
from aboard.diagnoses import InputError

PARSED, CAPTURED, RANK = CommandKind.PARSED, CommandKind.CAPTURED, CommandKind.RANK
LAUNCH = ("aboard", "launch", "n[1-2]")


def choose(command: str, *, capture: bool | None = None, in_job: bool = False) -> CommandKind:
    return choose_kind(tuple(shlex.split(command)), capture, in_job=in_job, launch=LAUNCH)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("torchrun --nnodes 2 x.py", PARSED),
        ("A=1 env B=2 /opt/bin/deepspeed x.py", PARSED),
        ("env A=1 accelerate launch x.py", PARSED),
        ("python -u -m torch.distributed.run x.py", PARSED),
        ("nohup torchrun x.py", PARSED),
        ("numactl -N 0 torchrun x.py", PARSED),
        ("timeout 1h torchrun x.py", PARSED),
        ("srun -N 2 bash run.sh", PARSED),
        ("sbatch run.sh", PARSED),
        ("docker run img torchrun x.py", PARSED),
        ("mpirun -np 2 python x.py", PARSED),
        ("composer -n 8 x.py", PARSED),  # it starts its ranks itself, so there is no launcher to capture
        ("tmux new -d 'torchrun x.py'", PARSED),
        ("uv run docker run img torchrun x.py", PARSED),
        ("bash run.sh", CAPTURED),
        ("A=1 ./tools/run.sh --lr 1", CAPTURED),
        ("env -u B A=1 sh -x run", CAPTURED),
        ("bash -c 'cd x && torchrun x.py'", CAPTURED),
        ("bash -c 'cd x && ./run.sh'", CAPTURED),
        ("sh -c 'echo $RANK'", RANK),
        ("make train LR=1", CAPTURED),
        ("axolotl train c.yml", CAPTURED),
        ("python -m axolotl.cli.main train c.yml", CAPTURED),
        ("/opt/bin/llamafactory-cli train c.yaml", CAPTURED),
        ("lmf train c.yaml", CAPTURED),
        ("NPROC_PER_NODE=8 swift rlhf --model x", CAPTURED),
        ("trl sft --model x", CAPTURED),
        ("tune run --nproc_per_node 2 full --config c", CAPTURED),
        ("colossalai run --nproc_per_node 8 x.py", CAPTURED),
        ("python ./deepy.py train.py a.yml", CAPTURED),
        ("./deepy.py train.py a.yml", CAPTURED),
        ("uv run --with wandb torchrun x.py", CAPTURED),
        ("conda run -n env python -m torch.distributed.run x.py", CAPTURED),
        ("poetry run -- accelerate launch x.py", CAPTURED),
        ("uv run bash run.sh", CAPTURED),
        ("env -C /x uv run axolotl train c.yml", CAPTURED),
        ("", RANK),
        ("A=1", RANK),
        ("train.py --launcher torchrun", RANK),
        ("python train.py run.sh", RANK),
        ("python -m axolotl.cli.train c.yml", RANK),
        ("./train --backend deepspeed", RANK),
        ("axolotl preprocess c.yml", RANK),
        ("llamafactory-cli export c.yaml", RANK),
        ("bash", RANK),
        ("python tools/deepy.pyc", RANK),
    ],
)
def test_the_way_of_a_command(command: str, kind: CommandKind) -> None:
    """Launchers are read, scripts and front ends run on a node, and other programs are ranks."""
    assert choose(command) is kind


@pytest.mark.parametrize(
    ("command", "option", "kind"),
    [
        ("python tools/start.py", "--capture", CAPTURED),
        ("nohup bash run.sh", "--capture", CAPTURED),
        ("bash run.sh", "--no-capture", RANK),
        ("numactl -N 0 bash rank.sh", "--no-capture", RANK),
        ("axolotl train c.yml", "--no-capture", RANK),
        ("torchrun x.py", "--no-capture", PARSED),
        ("uv run torchrun x.py", "--no-capture", PARSED),
        ("mpirun -np 2 x.py", "--no-capture", PARSED),
        ("./train", "--no-capture", RANK),
    ],
)
def test_an_option_overrides_the_choice(command: str, option: str, kind: CommandKind) -> None:
    """--capture runs anything on a node; with --no-capture a script is a rank, and launchers are read."""
    assert choose(command, capture=option == "--capture") is kind


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("sbatch -N2 run.sh a", CAPTURED),
        ("A=1 sbatch --wrap='srun torchrun x.py'", CAPTURED),
        ("srun run.sh", CAPTURED),
        ("srun -N2 bash -c 'cd x && torchrun y.py'", CAPTURED),
        ("srun -N2 A=1 axolotl train c.yml", CAPTURED),
        ("srun torchrun x.py", PARSED),
        ("srun --nope bash -c 'torchrun x.py'", PARSED),
        ("bash run.sh", CAPTURED),
        ("axolotl train c.yml", CAPTURED),
        ("python train.py", RANK),
    ],
)
def test_the_way_inside_a_job(command: str, kind: CommandKind) -> None:
    """The script of sbatch runs there, and so does what an srun starts by a shell or a front end."""
    assert choose(command, in_job=True) is kind


@pytest.mark.parametrize(
    ("command", "seen", "fix"),
    [
        (
            "nohup bash run.sh",
            "nohup would act on bash only",
            "detach the run: aboard launch 'n[1-2]' -d -- bash run.sh",
        ),
        ("A=1 setsid ./run.sh", "setsid would act on run.sh only", "aboard launch 'n[1-2]' -d -- A=1 ./run.sh"),
        ("numactl -N 0 axolotl train c.yml", "numactl would act", "launch 'n[1-2]' --bind -- axolotl train c.yml"),
        ("time -p bash run.sh", "time would act", "before aboard: time -p aboard launch 'n[1-2]' -- bash run.sh"),
        ("nice -n 5 make train", "nice would act on make only", "remove nice: aboard launch 'n[1-2]' -- make train"),
        ("nsys profile -o out bash run.sh", "nsys would act", "remove nsys, or let the launcher start it with"),
        (
            "uv run nohup torchrun x.py",
            "nohup would act on torchrun",
            "aboard launch 'n[1-2]' -d -- uv run torchrun x.py",
        ),
        ("nohup uv run torchrun x.py", "nohup would act on uv only", "-d -- uv run torchrun x.py"),
        ("sudo -E bash run.sh", "sudo would hide the launcher", "remove sudo: aboard launch 'n[1-2]' -- bash run.sh"),
    ],
)
def test_a_wrapper_whose_effect_would_be_lost_is_refused(command: str, seen: str, fix: str) -> None:
    """Ranks are not its children; the fix has what does the same for a run."""
    with pytest.raises(InputError) as error:
        choose(command)
    assert error.value.code == "paste-wrapped"
    assert seen in error.value.seen
    assert fix in error.value.fix


def test_the_variables_of_a_script() -> None:
    """Only a front end is told to start a launcher, which it would not do for one GPU."""
    env = {
        "NNODES": "2",
        "NODE_RANK": "1",
        "NPROC_PER_NODE": "8",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
    }
    assert build_script_env(1, 2, 8, "10.0.0.1", 29500, front_end=False) == env
    assert build_script_env(1, 2, 8, "10.0.0.1", 29500, front_end=True) == {**env, "FORCE_TORCHRUN": "1"}
    found = {
        each: uses_front_end(tuple(each.split()))
        for each in ("A=1 uv run python -m trl.cli sft", "bash run.sh", "", "A=1")
    }
    assert list(found.values()) == [True, False, False, False]


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("bash run.sh --lr 1", "run.sh"),
        ("A=1 bash -x scripts/run.sh", "scripts/run.sh"),
        ("./run.sh", "./run.sh"),
        ("bash -c 'torchrun x.py'", "bash"),
        ("bash -lc 'torchrun x.py'", "bash"),
        ("make train", "make"),
        ("axolotl train x.yml", "axolotl"),
    ],
)
def test_what_each_node_must_have(command: str, target: str) -> None:
    """The script's file, or the program that is searched in PATH."""
    assert build_script_program(shlex.split(command)).target == target
