"""Diagnoses of runs that can't be planned on these nodes, or exported to another launcher."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice, FixCommand

_USE_TORCHRUN = "or use: aboard launch --dry-run --as torchrun -- …"
_ANY_JOB = (
    "{everywhere:shell aboard launch $(scontrol show hostnames) -- train.py}    # the same, for any job\n"
    "{alone:shell aboard launch localhost -- train.py}    # to use this node alone"
)
_NAMED = "{named:shell aboard launch n1 n2 -- train.py}    # over ssh: each node must allow a login without a password"

PLAN = Diagnosis(
    code="launch-plan",
    title="the plan does not fit the nodes",
    symptoms=("no node would start a rank",),
    explanation="The requested ranks, slots, nodes or environment variables contradict each other.",
    fixes={
        "no-slots": Advice("set slots for a node: `slots: 8` in aboard.yaml"),
        "nodes": Advice("specify as many nodes as the run needs; Aboard never silently starts a smaller run"),
        "container": Advice("remove `container:`, and start the runtime yourself"),
        "slots": Advice("use at most {most}, or give the node more slots"),
        "env": Advice("remove {name}"),
    },
)

EXPORT_DEEPSPEED = Diagnosis(
    code="export-deepspeed",
    title="the plan can't be exported to DeepSpeed's launcher",
    symptoms=("deepspeed --hostfile",),
    explanation="DeepSpeed's launcher sends the same command to every node through a shell, so the command can't"
    " vary by node, and the shell drops or alters some characters.",
    fixes={
        "spelling": Advice(f"use only letters and digits, {_USE_TORCHRUN}"),
        "different": Advice(f"give all nodes the same {{what}}, {_USE_TORCHRUN}"),
        "env": Advice("remove {name} from env"),
    },
)

SLURM_NODES = Diagnosis(
    code="slurm-nodes",
    title="a Slurm job has several nodes, but no nodes were specified",
    symptoms=("this is a Slurm job of 2 nodes (n[1-2]), but Aboard can't read its nodes from Slurm yet",),
    explanation="Without nodes on the command line, in a hostfile or in aboard.yaml, Aboard uses only this machine,"
    " so the other nodes in the job would silently stay idle.",
    fixes={
        "named": FixCommand(f"{_NAMED}\n{_ANY_JOB}"),
        "any-job": FixCommand(_ANY_JOB),
    },
)

SLURM_COPIES = Diagnosis(
    code="slurm-copies",
    title="srun started several copies of aboard",
    symptoms=("srun started 2 copies of aboard; start only one, because it starts the ranks on all nodes itself",),
    explanation="Each copy would start every rank on every node. Run a single aboard command.",
    fixes="{command:shell aboard launch -- train.py}    # in the batch script or salloc's shell, without srun\n"
    "srun --nodes=1 --ntasks=1 {command:shell aboard launch -- train.py}    # or with srun, as one task",
)
