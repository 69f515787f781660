"""Diagnoses of scripts that a node runs, and of the launchers that they call, which Aboard replaces."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice

_ONCE = "Aboard runs the script on the first node, and starts the ranks in place of the launcher that it calls."

UNUSABLE = Diagnosis(
    code="capture-unusable",
    title="a launcher that a script called can't be read",
    symptoms=("is not a launcher that Aboard reads",),
    explanation=f"{_ONCE} For that, the node sends the launcher's arguments, variables and files. Aboard accepts only"
    " what a launcher could have got, so that no node can make it start something else.",
    remedy="Look at the line of the script that calls the launcher, and at the argument, variable or file that is"
    " named.",
    fixes={
        "launcher": Advice("let the script call torchrun, deepspeed or accelerate launch"),
        "report": Advice("run the script on {node} without Aboard; if it works there, please report this"),
        "file": Advice("make {path} a regular file of at most 64 KiB on {node}"),
    },
)

DIFFERS = Diagnosis(
    code="capture-differs",
    title="the script called different launchers on the nodes",
    symptoms=("RUN_NAME=run-$(date +%s)",),
    explanation="The script ran on each node, and its launchers become one run. Their arguments must agree, and so must"
    " the variables that ranks read: with two seeds, or two output directories, the ranks would not train one model. A"
    " node's rank, name, addresses, devices, network interfaces and paths of software may differ; each node keeps its"
    " own.",
    remedy="Let the script compute the value in the same way on each node, or set it for all of them: `aboard launch …"
    " -- RUN_NAME=… bash run.sh`.",
    fixes={
        "argument": Advice(
            "let the script give {what} the same value on each node; the program can read the node's number from"
            " GROUP_RANK"
        ),
        "spare": Advice("remove {names} from the script, or let it set one value on all nodes; or remove --spares"),
    },
)

NONE = Diagnosis(
    code="capture-none",
    title="a script failed before it called a launcher, or a launcher started no ranks",
    symptoms=("ended with exit code 1, and called no launcher",),
    explanation=f"{_ONCE} This script called neither torchrun, deepspeed nor accelerate launch, so there is no run."
    " A script whose commands each rank should run needs --no-capture. A script that ends with exit code 0 is not"
    " monitored, and no failure, unless its name is that of a launcher or --capture was typed.",
    fixes={
        "rank": "if each rank should run it: {launch:shell aboard launch --no-capture} -- {command:shell}",
        "mode": "chmod +x {script}    # on {node}; then launch again",
        "failed": "read its output, which is above; if each rank should run it:"
        " {launch:shell aboard launch --no-capture} -- {command:shell}",
    },
)

AFTER = Diagnosis(
    code="capture-after",
    title="a script failed after its run had succeeded",
    symptoms=("line 9: evaluate.sh: command not found",),
    explanation="The ranks have ended without an error. The script went on behind its launcher, and its own exit code"
    " is not 0. It is the exit code of the run, as it would be without Aboard.",
    fixes="aboard logs {run} --script -n all    # what the script printed",
)

MISSING = Diagnosis(
    code="capture-missing",
    title="the script of one node called no launcher",
    symptoms=('if [ "$NODE_RANK" = 0 ]; then torchrun',),
    explanation="torchrun and accelerate launch start the ranks of their own node only, so the script runs on each"
    " node. On this one it ended without calling the launcher that the others called, and the run can't start without"
    " its ranks.",
    fixes=Advice(
        "let the script call the launcher on each node: only preparations may depend on NODE_RANK or the host"
    ),
)

PARALLEL = Diagnosis(
    code="capture-parallel",
    title="a script called two launchers at the same time",
    symptoms=("torchrun a.py & torchrun b.py & wait",),
    explanation=f"{_ONCE} A run uses all nodes, so there can be one at a time; launchers one after the other are fine.",
    fixes=Advice(
        "in place of a loop over nodes, write one srun for all of them; for several training runs, remove the & after"
        " the first launcher, or start each script with its own aboard launch"
    ),
)

ESCAPED = Diagnosis(
    code="capture-escaped",
    title="a script started a launcher that Aboard could not replace",
    symptoms=(
        "env -i torchrun",
        "python -I -m torch.distributed.run",
        "sudo torchrun",
        "/usr/bin/srun torchrun",
        "ssh n2 'torchrun …'",
    ),
    explanation=f"{_ONCE} It finds the launcher by PATH and PYTHONPATH, which it sets for the script. This launcher was"
    " started without them, for example after `env -i`, `sudo`, `bash -l`, `module purge` or `export PYTHONPATH=$PWD`."
    " It would have started a run of its own on its node, so Aboard ended it. ssh, pdsh and mpirun start ranks on other"
    " nodes, which Aboard does itself.",
    fixes={
        "isolated": Advice("remove Python's options -I, -E and -S: python -m torch.distributed.run …"),
        "path": Advice("keep what PYTHONPATH has: export PYTHONPATH=$PWD:$PYTHONPATH"),
        "srun": Advice("call it as srun, without its path, and keep what PATH has: export PATH=…:$PATH"),
        "emptied": Advice("remove env -i before it, and set only the variables that have to change"),
        "user": Advice("remove sudo before it: ranks run as the user who logs in to the nodes"),
        "container": Advice(
            "start the container with Aboard: aboard launch -- apptainer exec IMAGE torchrun …, or with container: in"
            " aboard.yaml"
        ),
        "starter": Advice(
            "call torchrun, deepspeed or accelerate launch once in the script, without {starter}; in a script of"
            " sbatch, with srun before it (srun torchrun …): Aboard starts the ranks on all nodes"
        ),
        "other": Advice("call it by its name: torchrun, deepspeed or accelerate launch"),
    },
)
