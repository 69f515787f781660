"""Pasted srun commands, and those that the script of a job calls."""

import shlex
from dataclasses import replace

import pytest
from launcher_texts import TextFiles, as_text, pasted

from aboard.core.cluster.node import Node, TransportKind
from aboard.core.launchers.captured_launch import Capture
from aboard.core.launchers.launcher_command import ABOARD_LAUNCH, JobScript
from aboard.core.launchers.node_selection import apply_hostfile_slots, select_nodes
from aboard.core.launchers.slurm.captured_steps import JobReader
from aboard.core.plan.rank_variables import RankLayout, build_task_env
from aboard.diagnoses import InputError

HOME = {"HOME": "/home/me", "SCRATCH": "/scratch"}


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
        ("-N2 -J 'my job' --comment='a b'", "nodes 2, extra --comment=a b --job-name=my job"),
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
        ("srun --constraint='a b' python x.py", "can't be written into a batch script"),
        ("srun --version", "starts nothing"),
        ("srun", "has no script"),
        ("srun -N2 --ntasks-per-node=2 bash -c 'cd x; torchrun y.py'", "it would start torchrun 2 times on each node"),
        ("sbatch --array=0-3 job.sh", "each task of an array is a run of its own"),
        ("sbatch --export=A job.sh", "changes the variables that the script sees"),
        ("sbatch plain.sh", "its first line names no interpreter"),
        ("sbatch het.sh", "a heterogeneous job is not supported"),
        ("sbatch pyxis.sh", "pyxis.sh, line 3: srun --container-image starts a container of the plug-in pyxis"),
        ("sbatch --container-image=x.sqsh job.sh", "containers of a Slurm plug-in"),
        ("sbatch quote.sh", "a quote is not closed"),
        ("sbatch blank.sh", "<YOUR_DATA> is a placeholder"),
    ],
)
def test_refusals(command: str, seen: str) -> None:
    """What can't be obeyed is refused with the reason, and with what to do instead."""
    shell = "#!/bin/bash\n"
    files = {
        "job.sh": f"{shell}srun torchrun x.py\n",
        "plain.sh": "srun x\n",
        "het.sh": f"{shell}#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\nsrun x\n",
        "pyxis.sh": f"{shell}# srun --container-image=no\nsrun -N2 \\\n  --container-image=x.sqsh python x.py\n",
        "quote.sh": f"{shell}#SBATCH --comment='a\nsrun x\n",
        "blank.sh": f"{shell}srun torchrun x.py <YOUR_DATA>\n",
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


def test_flags_of_the_command_line_win() -> None:
    """As in sbatch, a typed flag overrides the script's line; --wrap is a script of its own."""
    files = {
        "job.sh": "#!/bin/sh\n#SBATCH -N2\n#SBATCH -p a\n\n#SBATCH -t 9\nx=1\n#SBATCH -A no\nsrun python x.py $1\n"
    }
    got = pasted("sbatch -p b job.sh z", files=files)
    assert got.slurm is not None
    assert (got.slurm.nodes, got.slurm.partition, got.slurm.time, got.slurm.account) == (2, "b", "9", None)
    assert got.script is not None
    assert got.script.words == ("/bin/sh", "job.sh", "z")
    wrapped = pasted("sbatch -N 3 --wrap='srun torchrun x.py'")
    assert wrapped.slurm is not None
    assert wrapped.script is not None
    assert (wrapped.slurm.nodes, wrapped.script.words[:2]) == (3, ("/bin/sh", "-c"))


@pytest.mark.parametrize(
    ("body", "noted"),
    [
        ("torchrun --nnodes 2 x.py", "line 2 seems to start a launcher of several nodes without srun"),
        ("if a; then\nA=1 torchrun \\\n --nnodes=$N x.py", "line 3 seems to start a launcher of several nodes"),
        ("for n in a b; do\nssh $n 'cd x; torchrun y.py' &\ndone", "line 3 seems to start ranks without srun"),
        ("srun -N1 -n1 ray start --head", "line 2 seems to start Ray"),
        ("srun --het-group=0 python x.py", "line 2 seems to use a part of a heterogeneous job"),
        ("trap 'scontrol requeue $SLURM_JOB_ID' SIGUSR1", "line 2 seems to trap a notice of the time limit"),
        ("trap 'rm -f x' EXIT TERM\necho trap USR1", ""),
        ("torchrun --nnodes 1 x.py\n# torchrun --nnodes 2 x.py\nscp a b:python", ""),
        ("srun bash -c '\n  torchrun --nnodes 2 x.py\n'\nexport CMD='torchrun --nnodes 2'", ""),
        ("srun torchrun --nnodes 2 x.py\nssh n2 hostname", ""),
        ("srun " * 30_000, ""),  # in no quadratic time
        ("ray start\n" * 1_000, "line 2 seems to start Ray"),
    ],
)
def test_what_a_body_seems_to_do_is_noted_before_its_job_waits(body: str, noted: str) -> None:
    """It is refused only when it happens: inside the job, nothing is said of lines that may never run."""
    files = {"job.sh": f"#!/bin/bash\n{body}\n"}
    notes = pasted("sbatch job.sh", files=files).notes
    assert len(notes) == bool(noted)
    assert all(f"job.sh, {noted}" in note for note in notes)
    assert not pasted("sbatch job.sh", files=files, environ=build_job()).notes


@pytest.mark.parametrize(
    ("typed", "header", "environ", "name"),
    [
        ("job.sh", "-N2", {}, "job.sh"),
        ("job.sh", "-J llama", {}, "llama"),
        ("job.sh", "-J llama", {"SBATCH_JOB_NAME": "other"}, "other"),
        ("-J typed job.sh", "-J llama", {"SBATCH_JOB_NAME": "other"}, "typed"),
        ("--wrap='srun x'", "", {}, "wrap"),
    ],
)
def test_the_job_of_a_script_has_the_name_that_sbatch_gives_it(
    typed: str, header: str, environ: dict[str, str], name: str
) -> None:
    """Paths with $SLURM_JOB_NAME and --dependency=singleton mean the same as without Aboard, in a job too."""
    files = {"job.sh": f"#!/bin/bash\n#SBATCH -d singleton {header}\nsrun python x.py\n"}
    got = pasted(f"sbatch {typed}", files=files, environ=environ)
    assert got.slurm is not None
    assert f"--job-name={name}" in got.slurm.extra
    inside = pasted(f"sbatch {typed}", files=files, environ=build_job(2, **environ))
    assert inside.script is not None
    assert inside.script.env["SLURM_JOB_NAME"] == name


def test_the_variables_of_a_script() -> None:
    """Those of the job that the script asks for: Aboard's own has one task on each node, and other CPUs for it."""
    files = {"job.sh": "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=4\nsrun python x.py\n"}
    got = pasted("sbatch job.sh", files=files, environ=build_job(4, SLURM_CPUS_PER_TASK="8"))
    assert got.script is not None
    names = ("SLURM_NNODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_JOB_NODELIST")
    assert [got.script.env[name] for name in names] == ["2", "8", "4", "4(x2)", "n1,n2"]
    assert got.script.removed == ("SLURM_CPUS_PER_TASK",)


def test_a_script_of_a_login_shell() -> None:
    """It finds our srun, although the login shell has replaced PATH."""
    got = pasted("sbatch job.sh a", files={"job.sh": "#!/bin/bash -l\nsrun python x.py\n"})
    assert got.script is not None
    assert got.script.words[:3] == ("/bin/bash", "-l", "-c")
    assert "capture/bin:$PATH" in got.script.words[3]
    assert got.script.words[4:] == ("job.sh", "a")


# -- sruns that a script calls -----------------------------------------------------------------------------------

FILES = {
    "/w/launch.sh": "set -e\nif true; then torchrun x.py; fi\n",
    "/w/rank.sh": "python x.py\n",
    "/w/tidy.sh": "rm x\n",
    "/w/with_env.sh": 'export RANK=$SLURM_PROCID\nexec "$@"\n',
    "/w/with_all.sh": "exec $*\n",
}


def read_job(nodes: int = 2, tasks: int = 2) -> JobReader:
    return JobReader(
        script=JobScript(words=("bash", "job.sh"), is_batch=True),
        files=lambda cwd: TextFiles(
            {name + path.removeprefix(f"{cwd}/"): text for path, text in FILES.items() for name in ("", "./")}
        ),
        environ={**build_job(nodes), "SLURM_NTASKS": str(tasks)},
        launch=ABOARD_LAUNCH,
        nodes=tuple(f"n{number}" for number in range(1, nodes + 1)),
        is_system_program=lambda name, _path: name in {"hostname", "cp"},
        has_own_python=False,
    )


def capture(command: str, **more: str) -> Capture:
    words = tuple(shlex.split(command))
    return Capture(node="n1", launcher=words[0], argv=words, cwd="/w", python="/p/python", env=more)


@pytest.mark.parametrize(
    ("command", "itself", "launcher"),
    [
        ("srun hostname", True, ""),
        ("srun -N1 -n1 python prepare.py", True, ""),
        ("srun -N1 -n1 apptainer exec i.sif python prepare.py", True, ""),
        ("srun bash -c 'mkdir -p /x && cp a /x'", True, ""),
        ("srun bash tidy.sh", True, ""),
        ("srun python x.py", False, ""),
        ("srun ./train", False, ""),
        ("srun bash -c 'RANK=$SLURM_PROCID python x.py'", False, ""),
        ("srun ./rank.sh", False, ""),
        ("srun torchrun x.py", False, ""),
        ("srun -N1 -n1 A=1 torchrun x.py", False, ""),
        ("srun -N1 -n1 apptainer exec i.sif torchrun x.py", False, ""),
        ("srun bash -c 'cd /x && torchrun x.py'", False, "torchrun"),
        ("srun bash -c 'apptainer exec i.sif accelerate launch x.py'", False, "apptainer"),
        ("srun bash launch.sh", False, "torchrun"),
        ("srun -N1 -n1 ./launch.sh a", False, "torchrun"),
        ("srun axolotl train c.yml", False, "axolotl"),
        ("srun --multi-prog x.conf", False, None),
        # What a script starts by its arguments, or by variables that the batch script exports.
        ("srun ./with_env.sh python x.py", False, ""),
        ("srun ./with_all.sh apptainer exec i.sif python x.py", False, ""),
        ("srun ./with_env.sh mkdir x", True, ""),
        ("srun ./tidy.sh x.py", True, ""),
        ("srun ./with_env.sh torchrun x.py", False, "torchrun"),
        ("srun ./with_env.sh bash -c 'cd /x; torchrun x.py'", False, "torchrun"),
        ("srun ./with_env.sh ./with_all.sh ./launch.sh", False, "torchrun"),
        ("srun ./with_env.sh ./tidy.sh x.py", True, ""),
        ("srun bash -c '$LAUNCHER --node_rank $SLURM_PROCID x.py'", False, "torchrun"),
        ('srun bash -c "${MODULE} x.py"', False, "python"),
        ("srun bash -c '$PROGRAM'", False, ""),
        ("srun bash -c 'echo $PYTHONPATH'", True, ""),
    ],
)
def test_what_becomes_of_an_srun(command: str, *, itself: bool, launcher: str | None) -> None:
    """Slurm's own srun, scripts on the nodes of the step, or a run; what can't be read waits for its refusal."""
    exported = {
        "LAUNCHER": "torchrun --nnodes 2",
        "MODULE": "python -u -m torch.distributed.launch",
        "PROGRAM": "python x.py",
        "PYTHONPATH": "/p/python",
    }
    step = capture(command, **exported)
    assert read_job().runs_itself(step) is itself
    if launcher is not None:
        assert (read_job().find_task_step(step) is not None) == bool(launcher)
    if launcher:
        command = command.replace("srun -N1 -n1", "srun").replace("srun", "srun -n4", 1)
        with pytest.raises(InputError, match=f"it would start {launcher} 2 times on each node"):
            read_job().find_task_step(capture(command, **exported))


def test_the_only_task_of_a_job_is_a_rank() -> None:
    assert not read_job(1, 1).runs_itself(capture("srun python x.py"))


def test_the_run_of_an_srun() -> None:
    """With what the script has set, its directory and its Python; none of Slurm's variables."""
    got = read_job().read(
        capture("srun --ntasks-per-node=4 python x.py", A="1", SRUN_CPUS_PER_TASK="2", MASTER_PORT="7")
    )
    assert (got.nodes, got.ranks, got.env, got.workdir, got.python) == (2, 4, {"A": "1"}, "/w", "/p/python")
    assert got.request.slurm_tasks


def test_a_script_on_standard_input_is_refused_with_what_to_write() -> None:
    """`aboard launch -- sbatch < job.sh`, as `sbatch` itself would read it."""
    with pytest.raises(InputError) as caught:
        pasted("sbatch --nodes=2")
    assert "sbatch … job.sh; a script on standard input is not read" in str(caught.value.problems[0].fix)


def test_a_hostfile_in_a_job_does_not_choose_the_nodes() -> None:
    """The note names the job, since the user may have named no nodes."""
    nodes = [Node(name=name, transport=TransportKind.SLURM, slots=2) for name in ("n1", "n2")]
    _nodes, notes = apply_hostfile_slots(nodes, nodes, "hosts")
    assert notes == ("hosts does not choose the nodes, since they are those of the Slurm job.",)


def test_a_launcher_without_srun() -> None:
    """It runs on the first node, as in any batch script; one that would wait for others is refused."""
    one = read_job().read(capture("torchrun --nproc-per-node 2 x.py", CUDA_VISIBLE_DEVICES="0,2"))
    assert (one.nodes, one.ranks, one.include, one.picked, one.per_node) == (1, 2, "n1", (0, 2), False)
    with pytest.raises(InputError, match="without srun runs on the first node only"):
        read_job().read(capture("torchrun --nnodes 2 x.py"))


@pytest.mark.parametrize(
    ("started", "seen"),
    [
        ("-w n{} torchrun --nnodes 2 --node_rank {} x.py", None),
        ("--nodelist=n{} -c 4 accelerate launch --num_machines 2 --num_processes 4 --machine_rank {} x.py", None),
        ("-w n{} apptainer exec i.sif torchrun --nnodes 2 --node_rank {} x.py", None),
        ("-w n{} torchrun --nnodes 2 x.py --seed {}", "--seed is "),
        ("-w n1 torchrun --nnodes 2 --node_rank {0} x.py", "are for the nodes n1, n1"),
    ],
)
def test_loops_over_nodes(started: str, seen: str | None) -> None:
    """One srun on each node is one run if only the launcher's own flags differ; a rank's arguments may not."""
    steps = [capture("srun -n 1 -N1 " + started.format(number, number)) for number in (1, 2)]
    assert [read_job().count_loop(step) for step in steps] == [2, 2]
    if seen is None:
        assert read_job().read(read_job().merge_loop(steps)[0]).nodes == 2
    else:
        with pytest.raises(InputError, match=seen):
            read_job().merge_loop(steps)


def test_an_srun_that_is_no_part_of_a_loop() -> None:
    commands = (
        "srun torchrun --nnodes 2 x.py",
        "srun -N1 -n1 python x.py",
        "srun -N1 -n1 torchrun x.py",
        "torchrun x.py",
    )
    assert [read_job().count_loop(capture(command)) for command in commands] == [0, 0, 0, 0]
