"""`deepspeed …`, read as DeepSpeed 0.19's launcher/runner.py reads it."""

from collections.abc import Sequence

from aboard.core.paste.exports import envfiles, exported
from aboard.core.paste.flags import Takes, help_of, obeyed, ours, refused, switch
from aboard.core.paste.master import master
from aboard.core.paste.pasted import Around, Pasted
from aboard.core.paste.script import program
from aboard.core.paste.typed import Grammar, Typed, read
from aboard.core.request import Request
from aboard.diagnoses import InputError, Problem, paste

NAME = "deepspeed"
DEFAULT_HOSTFILE = "/job/hostfile"
OTHER_LAUNCHER = "Aboard starts the ranks itself, over ssh, and can't start them by another launcher"

_NODE_RANK = "is not needed: each node is told its own"
_OWN_MESSAGES = "is not needed: Aboard has messages of its own"
_ELASTIC = "a run whose number of nodes changes can't be had: a smaller world than asked for is refused"

GRAMMAR = Grammar(
    launcher=NAME,
    flags=(
        help_of(NAME),
        obeyed("--hostfile", "-H"),
        obeyed("--include", "-i"),
        obeyed("--exclude", "-e"),
        obeyed("--num_nodes", takes=Takes.NUMBER),
        obeyed("--num_gpus", "--num_accelerators", takes=Takes.NUMBER),
        obeyed("--master_addr"),
        obeyed("--master_port", takes=Takes.NUMBER),
        switch("--module"),
        switch("--no_python"),
        switch("--no_local_rank"),
        switch("--bind_cores_to_rank"),
        obeyed("--ssh_port", takes=Takes.NUMBER),
        obeyed("--venv_script"),
        ours("--node_rank", says=_NODE_RANK),
        ours("--no_ssh", takes=Takes.NOTHING, says="is not needed: one command starts all nodes"),
        ours("--no_ssh_check", takes=Takes.NOTHING, says="is not needed: the quick check asks every node"),
        ours("--force_multi", takes=Takes.NOTHING, says="is not needed: a single other node is reached as many are"),
        ours("--save_pid", takes=Takes.NOTHING, says="is not needed: aboard status and aboard stop know the run"),
        ours("--log_level", says=_OWN_MESSAGES),
        ours("--quiet", "-q", takes=Takes.NOTHING, says=_OWN_MESSAGES),
        ours(
            "--enable_each_rank_log",
            says="is not needed: each rank has a log of its own in the run's directory (aboard logs --rank N)",
            fine=("None",),
        ),
        refused("--launcher", says=OTHER_LAUNCHER, fix=paste.FLAG.fix("slurm"), fine=("pdsh",)),
        refused(
            "--launcher_args",
            says="these are options of pdsh or MPI, which Aboard doesn't use",
            fix=paste.FLAG.fix("ssh-config"),
            fine=("",),
        ),
        refused(
            "--autotuning",
            says="the autotuner starts runs of its own, by DeepSpeed's launcher",
            fix=paste.FLAG.fix("autotuning"),
        ),
        refused(
            "--bind_core_list",
            says="the cores of a rank are chosen on each node, near its accelerator",
            fix=paste.FLAG.fix("cores"),
        ),
    ),
)

# Flags that DeepSpeed had before 0.19, and that guides still show.
FORMER = (
    refused("--elastic_training", takes=Takes.NOTHING, says=_ELASTIC),
    refused("--min_elastic_nodes", says=_ELASTIC, fine=("-1",)),
    refused("--max_elastic_nodes", says=_ELASTIC, fine=("-1",)),
    refused("--comment", says="this is for Slurm's srun", fine=("",)),
)
_ALL = Grammar(launcher=NAME, flags=(*GRAMMAR.flags, *FORMER))


def from_deepspeed(words: Sequence[str], around: Around) -> Pasted:
    """What `deepspeed WORDS` asks for. A hostfile that was named must be there: DeepSpeed would go on without it."""
    typed = read(_ALL, words)
    _refuse_combinations(typed)
    hostfile, notes = _hostfile(typed, around)
    env: dict[str, str] = {}
    if hostfile is not None:  # DeepSpeed carries variables to other nodes only
        env = exported(around.environ, cwd=around.cwd)
        more, found = envfiles(around)
        env |= more
        notes += tuple(f"Environment variables were read from {path}." for path in found)
    place = master(typed.text("master_addr"), _port(typed), where="--master_addr")
    gpus = typed.count("num_gpus")
    return Pasted(
        launcher=NAME,
        request=Request(
            program=program(typed, local_rank="" if typed.on("no_local_rank") else "--local_rank"),
            ranks=gpus,
            nodes=typed.count("num_nodes"),
            master_address=place.address,
            master_port=place.port,
            env=env,
            bind=typed.on("bind_cores_to_rank"),
        ),
        hostfile=hostfile,
        include=typed.text("include") or "",
        exclude=typed.text("exclude") or "",
        picked=tuple(range(gpus)) if gpus else None,
        setup=(f"source {venv}",) if (venv := typed.text("venv_script")) else (),
        ssh_port=typed.count("ssh_port"),
        notes=(*typed.notes, *notes),
    )


def _refuse_combinations(typed: Typed) -> None:
    counted = [name for name in ("num_nodes", "num_gpus") if typed.count(name)]
    filtered = [name for name in ("include", "exclude") if typed.text(name)]
    if counted and filtered:
        seen = f"--{counted[0]} can't be used with --{filtered[0]}, and DeepSpeed refuses it too"
        fix = paste.FLAG.fix("filtered", counted=counted[0], filter=filtered[0])
        raise InputError(paste.FLAG, [Problem(where=f"{NAME} --{counted[0]}", seen=seen, fix=fix)])


def _hostfile(typed: Typed, around: Around) -> tuple[str | None, tuple[str, ...]]:
    if named := typed.text("hostfile"):
        return named, ()
    if around.files.exists(DEFAULT_HOSTFILE):
        return DEFAULT_HOSTFILE, (f"The nodes are those of {DEFAULT_HOSTFILE}, as deepspeed does.",)
    return None, ()


def _port(typed: Typed) -> int | None:
    port = typed.values.get("master_port")
    return port if isinstance(port, int) else None
