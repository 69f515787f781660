"""Diagnoses of other launchers' commands, pasted after `aboard launch --`, that can't be run as they are."""

import shlex
from collections.abc import Sequence

from aboard.diagnoses.diagnosis import Mistake
from aboard.diagnoses.fixes import Advice, Shell
from aboard.diagnoses.shared_fixes import NEAR, SUGGESTED
from aboard.diagnoses.untrusted import escape_text

_MOST_WORDS, _LONGEST = 400, 4096


def quote_command_line(words: Sequence[str]) -> Shell:
    """Quotes each word of the user's command; unlike a value, a word may be an option."""
    line = shlex.join(escape_text(word, _LONGEST) for word in words[:_MOST_WORDS])
    return Shell(line + (" …" if len(words) > _MOST_WORDS else ""))


FLAG = Mistake(
    code="paste-flag",
    fixes={
        "near": NEAR,
        "of-script": Advice("put the script's flags after the script"),
        "alone": Advice("write {flag}"),
        "value": Advice("write {flag} VALUE; if it came from a shell variable, that variable is empty"),
        "number": Advice("write a whole number after {flag}"),
        "help": Advice("for the launcher's help: {launcher} --help"),
        "leave-out": Advice("remove {flag}"),
        "container": Advice(
            "convert the image once (apptainer build train.sif docker://ORG/NAME:TAG), set `container: {{runtime:"
            " apptainer, image: train.sif}}` under `cluster:` in aboard.yaml, so that ranks run in it, and remove"
            " {flag}; or write `apptainer exec train.sif` before the program"
        ),
        "leave-either": Advice("remove --{one} or --{two}"),
        "leave-one": Advice("remove one of the two flags"),
        "filtered": Advice("remove --{counted}: --{filter} selects the nodes and slots"),
        "slurm": Advice("remove --launcher: inside a Slurm job, Aboard uses the nodes of the job"),
        "ssh-config": Advice("remove --launcher_args; put ssh options into ~/.ssh/config"),
        "autotuning": Advice("remove --autotuning, or tune with deepspeed itself"),
        "cores": Advice("remove --bind_core_list, and keep --bind_cores_to_rank"),
        "events": Advice("remove --event-log-handler; the run directory contains the run's events"),
        "accelerate": Advice("start it with accelerate itself"),
        "mpirun-hostfile": 'list the nodes as "worker-0 slots=2" in a file, then: aboard launch --hostfile FILE --'
        " accelerate …",
        "use-env": Advice("add --use-env"),
        "nnodes": Advice("write --nnodes 2"),
        "nnodes-range": "write --nnodes {most}, or --nnodes {least}; to replace a node that fails, add --spares 1"
        " before --",
        "elastic": Advice("remove {flag}; to replace a node that fails, write aboard launch --spares 1 -- …"),
        "ranks": Advice("write --nproc-per-node 8, or gpu for one per slot"),
        "ranks-of-cpus": Advice("write the number: --nproc-per-node 8"),
        "numa": Advice("write --numa-binding node, or remove it"),
        "processes": Advice("remove num_processes: each node then starts one rank per slot"),
        "pdsh": Advice("write pdsh, or remove it"),
        "gpus": Advice("write --gpu_ids 0,1"),
        "placeholder": Advice("write {flag} with your own value"),
        "tasks-per-node": Advice("write the ranks of each node: --ntasks-per-node=8"),
        "one-task": Advice("write --ntasks-per-node=1"),
        "nodes": Advice("add --nodes=2"),
        "nodes-of": Advice("write --nodes={count}"),
        "nodelist": Advice("write --nodelist with the names of the nodes"),
        "setup": Advice("write its commands as lines of setup: in aboard.yaml"),
        "export": Advice("write --export=ALL,NAME=VALUE"),
        "dry-run": Advice("use aboard launch --dry-run"),
        "array": Advice("write aboard launch -- before srun in the script, and submit it with sbatch itself"),
    },
)

CONFIG = Mistake(
    code="paste-config",
    fixes={
        **SUGGESTED,
        "section": Advice("write its keys below it, or {key}: {{}}"),
        "number": Advice("write {key}: 2"),
        "type": Advice("add a line: distributed_type: FSDP"),
        "elsewhere": Advice("start it with accelerate itself, or pass a different --config_file"),
        "fsdp": Advice("set fsdp_sync_module_states to true, or fsdp_cpu_ram_efficient_loading to false"),
    },
)

MASTER = Mistake(
    code="paste-master",
    fixes={
        "host": Advice("write {option} with the name or address of the first node"),
        "port": Advice("remove the port: Aboard chooses one"),
        "nobody": Advice("remove it: Aboard chooses the address at which the other nodes reach {node}"),
        "endpoint": Advice("write HOST:PORT, or remove it: Aboard chooses both"),
    },
)

SCRIPT = Mistake(
    code="paste-script",
    fixes={
        "none": Advice("write the script after the flags: {launcher} … train.py"),
        "batch": Advice("write the file after the flags: {launcher} … job.sh; a script on standard input is not read"),
        "launch": Advice("write accelerate launch … train.py"),
    },
)

WRAPPED = Mistake(
    code="paste-wrapped",
    fixes={
        "starter": "remove {starter}: {launch:shell aboard launch} -- {command:shell}",
        "wrapper": "remove {wrapper}: {launch:shell aboard launch} -- {command:shell}",
        "nohup": "remove {wrapper}, and detach the run: {launch:shell aboard launch -d} -- {command:shell}",
        "before": "write it before aboard: {wrapper:shell} {launch:shell aboard launch} -- {command:shell}",
        "bind": "remove {wrapper}; --bind pins each rank to cores: {launch:shell aboard launch --bind} --"
        " {command:shell}",
        "profiler": "remove {wrapper}, or let the launcher start it with --no-python: {launch:shell aboard launch} --"
        " {command:shell}",
        "text": Advice("paste only the {name} command, and put the others into setup: in aboard.yaml"),
        "front-end": Advice(
            "in Slurm jobs and containers, write the torchrun or accelerate launch command that {name} starts"
        ),
        "torchrun": "let Aboard start its ranks: {launch:shell aboard launch} -- {command:shell}",
        "mpi": "if the script reads RANK and WORLD_SIZE, as torch.distributed does: {launch:shell aboard launch} --"
        " {command:shell}",
        "other": Advice("start it with {name} itself: Aboard starts the ranks of torch.distributed"),
    },
)

CONTAINER = Mistake(
    code="paste-container",
    fixes={
        "run": "start a new container: aboard launch -- {runtime} {subcommand} IMAGE torchrun … train.py",
        "command": "write what runs inside: aboard launch -- {runtime} {subcommand} {image} torchrun … train.py",
        "bind": Advice("write {flag} SOURCE:TARGET"),
        "env": Advice("write {flag} NAME=VALUE"),
        "copy": "copy it here, and name the copy instead: {runtime} exec {image} cat {path} > {name}",
        "copy-docker": "copy it here, and name the copy instead: {runtime} run --rm --entrypoint cat {image} {path} >"
        " {name}",
        "detach": "remove it, and detach the run: aboard launch -d -- …",
        "network": Advice("write --network host, or remove it"),
        "key": Advice("write {flag} FILE"),
        "overlay": Advice("write --overlay {overlay}:ro, so that all ranks can read it"),
        "gpus": Advice("write --gpus all, or --gpus device=0,1"),
        "inside": Advice("write only the launcher or python after the image, and put other commands into the image"),
        "order": Advice("write {inner} first, and the container after it"),
        "one": Advice("write one container"),
        "venv": Advice("remove --venv_script, and write container: in aboard.yaml with the python of that environment"),
    },
)

BATCH = Mistake(
    code="paste-batch",
    fixes={
        "shell": Advice("use a script of bash, with #!/bin/bash as its first line"),
        "quote": Advice("close the quote"),
        "het": Advice(
            "ask for one kind of node, without hetjob lines; or write aboard launch -- torchrun … in the script,"
            " without srun, and submit it with sbatch itself"
        ),
        "placeholder": Advice("replace it by your own value"),
        "srun": Advice("start it on all nodes: srun torchrun …"),
        "loop": Advice("start the same command on each node of the job once, or all of them with one srun"),
        "no-job": "run it in a job, where Slurm works: salloc --nodes=2, then aboard launch -- …; over ssh, the"
        " script alone: aboard launch n[1-2] -- bash script.sh",
    },
)

SLOTS = Mistake(code="paste-slots", fixes=Advice("use fewer slots, or give these nodes more"))
