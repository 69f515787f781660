"""Commands of other launchers, pasted behind `aboard launch --`, that can't be obeyed as they are."""

import shlex
from collections.abc import Sequence

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice, FixCommand, Shell
from aboard.diagnoses.shared_fixes import NEAR, SUGGESTED
from aboard.diagnoses.untrusted import escape_text

_MOST_WORDS, _LONGEST = 400, 4096


def quote_command_line(words: Sequence[str]) -> Shell:
    """The user's own words as they were typed, each quoted: unlike a value, such a word may be an option."""
    line = shlex.join(escape_text(word, _LONGEST) for word in words[:_MOST_WORDS])
    return Shell(line + (" …" if len(words) > _MOST_WORDS else ""))


def quote_last_line(command: Shell) -> Shell:
    """The last line that a command prints, as one word: inside of $( ) quoting begins anew."""
    return Shell(f'"$({command} | tail -n 1)"')


FLAG = Diagnosis(
    code="paste-flag",
    title="a flag of another launcher can't be obeyed",
    symptoms=("torchrun --nproc_per_node",),
    explanation="Commands of torchrun, deepspeed and accelerate can be pasted behind `--`, but not with this flag.",
    remedy="Type what stands behind `fix`: most often, leave the flag out.",
    fixes={
        "near": NEAR,
        "of-script": Advice("flags of the script itself go behind the script"),
        "alone": Advice("write {flag}"),
        "value": Advice("write {flag} VALUE; if it came from a shell variable, that variable is empty"),
        "number": Advice("write {flag} 2"),
        "help": Advice("for its help type: {launcher} --help"),
        "leave-out": Advice("leave {flag} out"),
        "leave-either": Advice("leave --{one} out, or --{two}"),
        "leave-one": Advice("leave one of the two flags out"),
        "filtered": Advice("leave --{counted} out: --{filter} says which nodes and slots to use"),
        "no-restarts": Advice("leave {flag} out, or write {flag} 0"),
        "slurm": FixCommand(
            'leave --launcher out; under Slurm type: aboard launch "$SLURM_JOB_NODELIST" -- deepspeed …'
        ),
        "ssh-config": Advice("leave --launcher_args out; what ssh needs goes into ~/.ssh/config"),
        "autotuning": Advice("leave --autotuning out, or tune with deepspeed itself"),
        "cores": Advice("leave --bind_core_list out, and keep --bind_cores_to_rank"),
        "events": Advice("leave --event-log-handler out; the run's directory holds its events"),
        "accelerate": Advice("start it with accelerate itself"),
        "mpirun-hostfile": FixCommand(
            'list the nodes as "worker-0 slots=2" in a file, and type: aboard launch --hostfile FILE -- accelerate …'
        ),
        "use-env": Advice("add --use-env"),
        "nnodes": Advice("write --nnodes 2"),
        "nnodes-range": FixCommand("write --nnodes {most}, or --nnodes {least}"),
        "ranks": Advice("write --nproc-per-node 8, or gpu for one on each slot"),
        "ranks-of-cpus": Advice("write the number: --nproc-per-node 8"),
        "numa": Advice("write --numa-binding node, or leave it out"),
        "processes": Advice("leave num_processes out: then each node starts one rank for each of its slots"),
        "pdsh": Advice("write pdsh, or leave it out"),
        "gpus": Advice("write --gpu_ids 0,1"),
    },
)

CONFIG = Diagnosis(
    code="paste-config",
    title="a config of accelerate can't be obeyed",
    symptoms=("accelerate launch --config_file",),
    explanation="It says something that contradicts the nodes, or that would be ignored.",
    remedy="Change the lines that are named, or give the script alone: `aboard launch -- train.py`.",
    fixes={
        **SUGGESTED,
        "section": Advice("write its keys below it, or {key}: {{}}"),
        "number": Advice("write {key}: 2"),
        "type": Advice("add a line: distributed_type: FSDP"),
        "elsewhere": Advice("start it with accelerate itself, or name another --config_file"),
        "fsdp": Advice("set fsdp_sync_module_states to true, or fsdp_cpu_ram_efficient_loading to false"),
    },
)

MASTER = Diagnosis(
    code="paste-master",
    title="the master of the pasted command is no node of ours",
    symptoms=("--master_addr",),
    explanation="Aboard picks the first node, and a port that it has just seen bind. A pasted one must agree.",
    fixes={
        "host": Advice("write {option} with the name or address of the first node"),
        "port": Advice("leave the port out: one is chosen"),
        "endpoint": Advice("write HOST:PORT, or leave it out: both are chosen"),
    },
)

SCRIPT = Diagnosis(
    code="paste-script",
    title="the pasted command has no script",
    symptoms=("starts no run; accelerate launch does",),
    explanation="There is nothing that ranks could run.",
    fixes={
        "none": Advice("write the script behind the flags: {launcher} … train.py"),
        "launch": Advice("write accelerate launch … train.py"),
    },
)

WRAPPED = Diagnosis(
    code="paste-wrapped",
    title="the pasted command starts a launcher by itself",
    symptoms=("starts deepspeed by itself, so every rank would start a run of its own",),
    explanation="Every rank would run a script around deepspeed or torchrun (deepy.py of gpt-neox, a shell script).",
    fixes={
        "sbatch": FixCommand("type the command that the script starts: aboard launch -- accelerate launch …"),
        "container": FixCommand("let each rank start the container: aboard launch -- {command:shell}"),
        "starter": FixCommand("leave {starter} out: aboard launch -- {command:shell}"),
        "deepy": FixCommand("let gpt-neox print that command: eval aboard launch -- deepspeed {printed:shell}"),
        "script": FixCommand(
            "type what it starts, script and arguments too: aboard launch -- deepspeed {flags:shell} …"
        ),
    },
)

SLOTS = Diagnosis(
    code="paste-slots",
    title="the pasted command asks for more slots than there are",
    symptoms=("has fewer slots than",),
    explanation="It names GPUs by number, and a node has fewer.",
    fixes=Advice("ask for fewer, or give these nodes more slots"),
)
