"""Diagnoses of runs that can't be planned on these nodes, or exported to another launcher."""

from aboard.diagnoses.diagnosis import Mistake
from aboard.diagnoses.fixes import Advice

_USE_TORCHRUN = "or use: aboard launch --dry-run --as torchrun -- …"

PLAN = Mistake(
    code="launch-plan",
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

EXPORT_DEEPSPEED = Mistake(
    code="export-deepspeed",
    fixes={
        "spelling": Advice(f"use only letters and digits, {_USE_TORCHRUN}"),
        "different": Advice(f"give all nodes the same {{what}}, {_USE_TORCHRUN}"),
        "env": Advice("remove {name} from env"),
        "container": Advice("use: aboard launch --dry-run --as torchrun -- …"),
    },
)
