"""Pasted srun commands, and batch scripts that are read without being run."""

import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from launcher_texts import as_text, pasted

from aboard.core.cluster.node import Node, TransportKind
from aboard.core.launchers.node_selection import select_nodes
from aboard.core.plan.rank_variables import RankLayout, build_task_env
from aboard.diagnoses import InputError

GOLDEN = Path(__file__).parent / "golden" / "paste" / "scripts"
EXAMPLES = Path(__file__).parents[2] / "examples" / "slurm"
SCRIPTS = {path.name: path.read_text("utf-8") for path in (*GOLDEN.glob("*.sh"), *EXAMPLES.glob("*.sh"))}
HOME = {"HOME": "/home/me", "SCRATCH": "/scratch"}
ARGUMENTS = {"start_job_llama": " --work-dir /w --train-options '--batch-size 1 --use-flash-attn --train-file j.jsonl'"}


def build_job(nodes: int = 4, **more: str) -> dict[str, str]:
    """The variables of a shell inside job 7, on the nodes n1 to nN."""
    count = dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS"), str(nodes))
    names = dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), f"n[1-{nodes}]")
    return {
        **HOME,
        "SLURM_JOB_ID": "7",
        "SLURM_JOBID": "7",
        "SLURM_JOB_GPUS": "4,5",
        "SLURM_NTASKS_PER_NODE": "1",
        **count,
        **names,
        **more,
    }


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_what_becomes_of_a_script(name: str) -> None:
    """The job and the run that a script asks for, on a login node and inside its job."""
    stem = name.removesuffix(".sh")
    command = f"sbatch {name}{ARGUMENTS.get(stem, '')}"
    before, inside = as_text(command, SCRIPTS, HOME), as_text(command, SCRIPTS, build_job())
    text = f"$ {command}\n\n{before}" + (f"\ninside the job\n\n{inside}" if inside != before else "")
    assert text == (GOLDEN / f"{stem}.txt").read_text("utf-8")


@pytest.mark.parametrize(
    ("flags", "nodes", "ranks", "include"),
    [
        ("", 4, 1, ""),
        ("-N 2", 2, 1, ""),
        ("-N2 --ntasks-per-node=8", 2, 8, ""),
        ("--ntasks 8", 4, 2, ""),
        ("-n1", 1, 1, ""),
        ("-N4 -n2", 2, 1, ""),
        ("-n 8 --tasks-per-node 4", 2, 4, ""),
        ("-w n3 -N1", 1, 1, "n3"),
        ("--nodelist=n[2-3] --nodes 2", 2, 1, "n2@n3"),
        ("-w n2", 4, 1, ""),  # srun starts the others too
        ("-x n2", None, 1, ""),
        ("-lu -K1 --cpu-bind=none --mpi=none --overlap --exclusive --jobid 7", 4, 1, ""),
    ],
)
def test_tasks_inside_a_job(flags: str, nodes: int | None, ranks: int, include: str) -> None:
    """Nodes and tasks are those that srun itself would choose in a job of four nodes; each task is a rank."""
    got = pasted(f"srun {flags} python train.py", environ=build_job())
    assert (got.nodes, got.ranks, got.include) == (nodes, ranks, include)
    assert got.slurm is None


def test_a_task_that_changes_its_directory() -> None:
    """Ranks start where a task's shell goes before it starts its launcher."""
    assert pasted("srun bash -c 'cd /x && torchrun x.py'", environ=build_job()).workdir == "/x"


@pytest.mark.parametrize(
    ("flags", "nodes", "ranks"), [("", 2, 2), ("-N 2", 2, 2), ("-N1", 1, 4), ("-n 6", 2, 3), ("-n1", 1, 1)]
)
def test_tasks_of_the_job(flags: str, nodes: int, ranks: int) -> None:
    """In `salloc -N2 -n4`, srun starts four tasks, on however many nodes."""
    environ = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-2]"}
    got = pasted(f"srun {flags} python train.py", environ=environ)
    assert (got.nodes, got.ranks) == (nodes, ranks)


def test_excluded_nodes_of_the_job() -> None:
    """Nodes that srun excludes are filtered out of the job's."""
    assert pasted("srun -x n2,n3 python train.py", environ=build_job()).exclude == "n2@n3"


def test_the_first_nodes_of_the_job() -> None:
    """An srun over two of the job's four nodes uses the first two."""
    nodes = tuple(Node(name=f"n{number}", slots=2) for number in range(1, 5))
    got = pasted("srun -N2 -D /data torchrun --nproc-per-node 2 x.py", environ=build_job())
    assert [(node.name, node.workdir) for node in select_nodes(got, nodes)] == [("n1", "/data"), ("n2", "/data")]


def test_slots_of_a_job_without_gpus() -> None:
    """Where the job has no GPUs to count, the command says how many ranks a node has; GPUs are never exceeded."""
    cpus = Node(name="n1", slots=1, transport=TransportKind.SLURM)
    nodes = (cpus, replace(cpus, step_options=("--gres=gpu:1",)), replace(cpus, transport=TransportKind.SSH))
    got = pasted("srun -N3 --ntasks-per-node=4 python x.py")
    assert [node.slots for node in select_nodes(got, nodes)] == [4, 1, 1]


@pytest.mark.parametrize(
    ("flags", "job"),
    [
        (
            "-N 2 -p gpu -A me -t 1:00 -q high -C a100 -x n9",
            "nodes 2, partition gpu, account me, time 1:00, qos high, constraint a100, exclude n9",
        ),
        ("-N2 --gpus-per-node=4", "nodes 2, gpus_per_node 4"),
        ("-N2 --gres=gpu:4", "nodes 2, gpus_per_node 4"),
        ("-N2 --gres=gpu:a100:4,lustre", "nodes 2, extra --gres=gpu:a100:4,lustre"),
        ("-N2 -G 8", "nodes 2, gpus_per_node 4"),
        ("-N2 --gpus=7", "nodes 2, extra --gpus=7"),
        ("-N2 --ntasks-per-node=4 --gpus-per-task=1 -c 8", "nodes 2, gpus_per_node 4, extra --cpus-per-task=32"),
        ("-N2 --mem=0 --exclusive --reservation=r", "nodes 2, extra --mem=0 --reservation=r --exclusive"),
        ("-N2 -w n[1-2] --contiguous", "nodes 2, extra --contiguous --nodelist=n[1-2]"),
        ("-n1", "nodes 1"),
        ("", "nodes 1"),
    ],
)
def test_the_job_of_srun(flags: str, job: str) -> None:
    """Outside of a job, srun's flags are the request of a job with one task, the agent, on each node."""
    lines = as_text(f"srun {flags} python train.py", {}).splitlines()
    assert next(line for line in lines if line.startswith("job: ")) == f"job: {job}"


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("srun -N2 --ntasks-per-node=8 torchrun x.py", "it would start torchrun 8 times on each node"),
        ("srun -N2 torchrun --nnodes 4 x.py", "srun starts torchrun on 2 of 4 nodes"),
        ("srun -N3 -n4 python x.py", "4 tasks can't be divided evenly among 3 nodes"),
        ("srun -n4 python x.py", "the number of nodes is not given"),
        ("srun -N1-4 python x.py", "1-4 is not one number of nodes"),
        ("srun -N2 -w n1 python x.py", "it has 1 name, but --nodes is 2"),
        ("srun --export=NONE python x.py", "hides all other variables"),
        ("srun --export=ALL,1=2 python x.py", "'1' is not a"),
        ("srun --container-image=x.sqsh python x.py", "containers of a Slurm plug-in"),
        ("srun --multi-prog x.conf", "all ranks run the same program"),
        ("srun --pty bash", "ranks have no terminal"),
        ("srun --jobid 9 python x.py", "job 9 is not the job"),
        ("srun --comment='a b' python x.py", "can't be written into a batch script"),
        ("srun --version", "starts nothing"),
        ("srun", "has no script"),
        ("srun bash -c 'module load m; torchrun x.py'", "it has 1 programs, or commands that prepare"),
        ("srun bash -c 'rsync a b; torchrun x.py'", "it has 2 programs"),
        ("srun bash -c 'torchrun x.py < y'", "the input of torchrun"),
        ("srun bash -c 'python x.py $SLURM_PROCID'", "SLURM_PROCID, which differs by task"),
        ("sbatch --array=0-3 job.sh", "each task of an array is a run of its own"),
        ("sbatch --export=A job.sh", "changes the variables that the script sees"),
        ("sbatch python.sh", "its first line names no shell"),
        ("sbatch het.sh", "a heterogeneous job is not supported"),
        ("sbatch quote.sh", "a quote is not closed"),
        ("sbatch forged.sh", "a character that is reserved"),
        (
            "sbatch start_job_llama.sh --nope",
            "line 19: the script ends here with an error (exit 1: unknown option: --nope)",
        ),
    ],
)
def test_refusals(command: str, seen: str) -> None:
    """What can't be obeyed is refused with the reason, and with what to do instead."""
    shell = "#!/bin/bash\n"
    files = {
        **SCRIPTS,
        "job.sh": f"{shell}srun torchrun x.py\n",
        "python.sh": "#!/usr/bin/env python\n",
        "het.sh": f"{shell}#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\nsrun x\n",
        "quote.sh": f"{shell}#SBATCH --comment='a\nsrun x\n",
        "forged.sh": f"{shell}srun torchrun x.py \ue000SLURM_JOB_ID\ue001\n",
    }
    with pytest.raises(InputError) as error:
        pasted(command, files=files)
    assert seen in f"{error.value.problems[0].where}: {error.value.seen}"
    assert error.value.fix


def test_exported_variables() -> None:
    """--export adds variables, from its own text or from the shell; a name that isn't set is left out, as by srun."""
    got = pasted("srun --export=ALL,A=1,HOME,NO python x.py", environ=build_job())
    assert got.env == {"A": "1", "HOME": "/home/me"}


def test_the_variables_of_a_task() -> None:
    """A rank that srun would start itself finds its number where srun puts it; a launcher's ranks don't."""
    layout = RankLayout(rank=5, world=8, local=1, local_world=4, group=1, groups=2)
    expected = {"PROCID": "5", "LOCALID": "1", "NODEID": "1", "NTASKS": "8", "NPROCS": "8", "NTASKS_PER_NODE": "4"}
    assert build_task_env(layout) == {f"SLURM_{name}": value for name, value in expected.items()}
    assert pasted("srun python x.py").request.slurm_tasks
    assert not pasted("srun torchrun x.py").request.slurm_tasks


def test_a_script_of_ranks() -> None:
    """A script without a launcher is each rank's own program; one with a launcher is read."""
    files = {"run.sh": "python x.py $SLURM_PROCID\n", "launch.sh": 'torchrun --nproc-per-node 2 "$1" --seed 1\n'}
    own = pasted("srun -N2 -n4 ./run.sh a", files={"./run.sh": files["run.sh"]}).request
    assert (own.program.target, own.program.args, own.ranks) == ("./run.sh", ("a",), 2)
    read = pasted("srun -N2 bash launch.sh y.py", files=files).request
    assert (read.program.target, read.program.args, read.ranks) == ("y.py", ("--seed", "1"), 2)


def test_flags_of_the_command_line_win() -> None:
    """As in sbatch, a typed flag overrides the script's line; --wrap is a script of its own."""
    files = {
        "job.sh": "#!/bin/sh\n#SBATCH -N2\n#SBATCH -p a\n\n#SBATCH -t 9\nx=1\n#SBATCH -A no\nsrun python x.py $1\n"
    }
    got = pasted("sbatch -p b job.sh z", files=files)
    assert got.slurm is not None
    assert (got.slurm.nodes, got.slurm.partition, got.slurm.time, got.slurm.account) == (2, "b", "9", None)
    assert got.request.program.args == ("z",)
    wrapped = pasted("sbatch -N 3 --wrap='srun torchrun x.py'")
    assert wrapped.slurm is not None
    assert (wrapped.slurm.nodes, wrapped.nodes) == (3, 3)


def test_programs_without_srun() -> None:
    """They run on the first node; the devices before a command are slots, and one that waits for others is refused."""
    shell = "#!/bin/bash\n#SBATCH -N2\n"
    files = {
        "env.sh": f"{shell}ulimit -n 4096\nenv A=1 srun python x.py\n",
        "one.sh": f"{shell}CUDA_VISIBLE_DEVICES=0,2 A=1 torchrun --nproc-per-node 2 x.py\n",
        "python.sh": f"{shell}export CUDA_VISIBLE_DEVICES=1\npython -u x.py\n",
        "waits.sh": f"{shell}torchrun --nnodes 2 x.py\n",
    }
    env = pasted("sbatch env.sh", files=files)
    assert (env.nodes, env.env, env.setup) == (2, {"A": "1"}, ("ulimit -n 4096",))
    one = pasted("sbatch one.sh", files=files)
    assert (one.nodes, one.ranks, one.picked, one.env) == (1, 2, (0, 2), {"A": "1"})
    python = pasted("sbatch python.sh", files=files)
    assert (python.nodes, python.ranks, python.picked, python.request.program.options) == (1, 1, (1,), ("-u",))
    with pytest.raises(InputError, match="without srun, which starts it on the first node only"):
        pasted("sbatch waits.sh", files=files)


@pytest.mark.parametrize(
    ("started", "seen"),
    [
        ("-w $n torchrun --nnodes 2 --node_rank $((i++)) x.py", None),
        ("--nodelist=$n -c 4 accelerate launch --num_machines 2 --num_processes 4 --machine_rank $((i++)) x.py", None),
        ("-w $n torchrun --nnodes 2 x.py --node_rank $((i++))", "a second program"),
        ("-w n1 torchrun --nnodes 2 --node_rank $((i++)) x.py", "which is not one on each of 2 nodes"),
        ("-w n3 torchrun x.py", "a second program"),
        ("-N2 torchrun x.py", "a second program"),
    ],
)
def test_loops_over_nodes(started: str, seen: str | None) -> None:
    """One program on each node is one run if only the launcher's own flags differ; a rank's arguments may not."""
    text = "#!/bin/bash\n#SBATCH -N2\ni=0\nfor n in $(scontrol show hostnames); do\n"
    files = {"job.sh": f"{text}/usr/bin/srun -n 1 {started} &\ndone\nwait\n"}
    if seen is None:
        assert pasted("sbatch job.sh", files=files, environ=build_job()).nodes == 2
    else:
        with pytest.raises(InputError, match=seen):
            pasted("sbatch job.sh", files=files, environ=build_job())


def test_ranks_that_the_script_numbers() -> None:
    """A script that derives RANK from the task gets Aboard's own number, which is the same."""
    text = "#!/bin/bash\n#SBATCH -N2\nexport WORLD_SIZE=$SLURM_NPROCS B=2\n"
    text += "srun --ntasks-per-node=4 bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID C=3 python x.py'\n"
    got = pasted("sbatch job.sh", files={"job.sh": text})
    assert (got.nodes, got.ranks, got.env) == (2, 4, {"B": "2", "C": "3"})


def test_broken_scripts_are_refused() -> None:
    """Whatever a script contains, it is read or refused: no other error, and no endless loop."""
    dice = random.Random(5)  # noqa: S311 - no secret
    pieces = (
        "'",
        '"',
        "$(",
        "${",
        ")",
        "}",
        "`",
        "((",
        "<<END",
        ";;",
        "|",
        "&",
        "for ",
        "case ",
        "\\",
        "[[",
        "$",
        "\n",
    )
    texts = [text for text in SCRIPTS.values() if text]
    for _ in range(400):
        text = dice.choice(texts)
        for _ in range(dice.randrange(1, 4)):
            at, length = dice.randrange(12, len(text)), dice.choice((0, 0, 1, 5, 40))
            text = text[:at] + dice.choice(pieces) + text[at + length :]
        with suppress(InputError):
            pasted("sbatch job.sh --work-dir /w", files={"job.sh": text}, environ=build_job())


PORTS = (
    "$RANDOM",
    "$((10000 + RANDOM % 20000))",
    "$((10000 + $RANDOM % 20000))",
    "$(shuf -i 10000-20000 -n 1)",
    "$(shuf -i $RANDOM-20000 -n 1)",
    "$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))",
    "1$(echo $SLURM_JOB_ID | tail -c 5)",
)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    ("started", "flag"),
    [
        ("torchrun --master_port=$MASTER_PORT", "--master_port"),
        ("torchrun --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT", "--rdzv-endpoint"),
        ("torchrun --rdzv_backend=c10d --rdzv_endpoint=n9:$MASTER_PORT", "--rdzv-endpoint"),
        (
            "accelerate launch --main_process_port $MASTER_PORT --num_machines 2 --num_processes 4",
            "--main_process_port",
        ),
    ],
)
def test_a_port_that_the_script_computes_is_left_to_aboard(started: str, flag: str, port: str, inside: bool) -> None:  # noqa: FBT001 - a case
    """The run has no fixed port, and a note says so; what stands for an unknown value is never shown."""
    lines = ("MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)", f"export MASTER_PORT={port}")
    script = "\n".join(("#!/bin/bash", "#SBATCH -N 2 --ntasks-per-node=1", *lines, f"srun {started} train.py"))
    text = as_text("sbatch job.sh", {"job.sh": script}, build_job(2) if inside else HOME)
    assert f"note: {flag}: the script computes the port, so the port is chosen by Aboard." in text
    assert ":(chosen)" in text
    assert not any(mark in text for mark in ("\ue000", "\\ue00", "MASTER_PORT"))


@pytest.mark.parametrize(
    ("lines", "seen"),
    [
        ("N=$RANDOM\nsrun torchrun --nnodes=$N x.py", "line 4: Aboard can't follow '--nnodes=$RANDOM', whose value"),
        ("N=$((RANDOM % 2))\nsrun torchrun --nproc-per-node $N x.py", "can't follow '$((RANDOM % 2))', whose value"),
        ("N=$((RANDOM))\nsrun torchrun x.py --seed $N", "can't follow ((RANDOM)) in the command"),
        ("echo $((N = RANDOM))\nsrun torchrun x.py", "line 3: Aboard can't follow arithmetic with RANDOM"),
        ("if (( RANDOM % 2 )); then A=1; fi\nsrun torchrun x.py", "line 3: Aboard can't follow arithmetic with RANDOM"),
    ],
)
def test_other_values_that_the_script_computes_are_refused(lines: str, seen: str) -> None:
    """The refusal has the script's line and the value as written, and the edit of the script as the way out."""
    text = as_text("sbatch job.sh", {"job.sh": f"#!/bin/bash\n#SBATCH -N2\n{lines}\n"}, HOME)
    assert text.startswith("refused [paste-batch] job.sh, line")
    assert seen in text
    assert "sed -i.bak -e '4s/srun/aboard launch -- srun/' job.sh && sbatch job.sh" in text
    assert "ue00" not in text


def test_the_way_out_keeps_the_options_and_arguments_of_sbatch() -> None:
    """The printed command submits the edited script with the words that the user typed, quoted."""
    script = "#!/bin/bash\n#SBATCH -N2\ncp a b\nsrun torchrun train.py $1\n"
    with pytest.raises(InputError) as error:
        pasted("sbatch --nodes=1 --time=5 job.sh --name 'a b;c'", files={"job.sh": script})
    edit = "sed -i.bak -e '4s/srun/aboard launch -- srun/' job.sh"
    assert error.value.fix.endswith(f": {edit} && sbatch --nodes=1 --time=5 job.sh --name 'a b;c'")


def test_a_hostfile_that_the_script_writes_is_left_to_the_script() -> None:
    """It exists only once the job runs, so the command goes into the script, as the fix says."""
    lines = ("rm -f $H", "for n in n1 n2; do echo $n slots=2 >> $H; done", "deepspeed --hostfile $H train.py")
    script = "\n".join(("#!/bin/bash", "#SBATCH -N 2 --ntasks-per-node=1", "H=/w/hosts", *lines))
    with pytest.raises(InputError) as error:
        pasted("sbatch job.sh", files={"job.sh": script}, environ=build_job(2))
    assert "a hostfile that the script itself writes" in str(error.value.problems[0])
    assert "write one aboard launch -- torchrun" in error.value.fix


def test_variables_before_a_launcher_may_be_set_by_env() -> None:
    """`env FOO=1 torchrun` is read like `FOO=1 torchrun`, by itself and behind srun."""
    alone = [pasted(f"{start} torchrun --nproc-per-node 2 t.py") for start in ("FOO=1", "env FOO=1")]
    assert alone[0] == alone[1]
    for start in ("srun env FOO=1", "FOO=1 srun", "srun"):
        script = f"#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=1\n{start} torchrun --nproc-per-node 2 train.py"
        text = as_text("sbatch job.sh", {"job.sh": script}, build_job(2))
        assert ("FOO=1" in text or "FOO: 1" in text) is ("FOO" in start), text
