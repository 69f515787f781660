"""Diagnoses of runs that can't be planned on these nodes, or exported to another launcher."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice

_USE_TORCHRUN = "or use: aboard launch --dry-run --as torchrun -- …"

PLAN = Diagnosis(
    code="launch-plan",
    title="the plan does not fit the nodes",
    symptoms=("no node would start a rank",),
    explanation="The requested ranks, slots, nodes or environment variables contradict each other.",
    fixes={
        "no-slots": Advice("set slots for a node: `slots: 8` in aboard.yaml"),
        "nodes": Advice("specify as many nodes as the run needs; Aboard never silently starts a smaller run"),
        "job": "{salloc:shell salloc --nodes=2} {command:shell aboard launch -- train.py}"
        "    # outside this job; Aboard never silently starts a smaller run\n"
        "add: --set {key}={count}    # or ask for what this job has",
        "slots": Advice("use at most {most}, or give the node more slots"),
        "env": Advice("remove {name}"),
        "master": Advice(
            "remove MASTER_ADDR: Aboard uses the address at which the nodes reach rank 0's; for another address of that"
            " node, type `--env MASTER_ADDR=ADDRESS`"
        ),
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
        "container": Advice("use: aboard launch --dry-run --as torchrun -- …"),
    },
)
