"""The stories of commands that can't be obeyed as they are typed."""

from aboard.core.rule import Subject
from aboard.verdicts.errors.row import stories

_ROWS = (
    (
        "command",
        "there is no such command",
        "there is no command",
        "Aboard has a dozen verbs.",
        "`aboard --help` lists them.",
    ),
    (
        "launch-command",
        "nothing is to be launched",
        "there is no command behind --",
        "What stands behind `--` is what every rank runs.",
        "`aboard launch -- train.py --lr 1e-5`.",
    ),
    (
        "slurm-nodes",
        "a Slurm job has several nodes, and none was named",
        "this is a Slurm job of 2 nodes (n[1-2]), and Aboard can't take them from Slurm by itself yet",
        (
            "Without nodes on the command line, in a hostfile or in aboard.yaml, Aboard uses the machine that it runs"
            " on. In a job of several nodes, the others would stay idle without a word."
        ),
        (
            "Name the nodes: `aboard launch $(scontrol show hostnames) -- train.py`. Aboard reaches them over ssh, so"
            " each must let you log in without a password (many clusters allow it on nodes of your own job). To use one"
            " node alone: `aboard launch localhost -- train.py`."
        ),
    ),
    (
        "slurm-copies",
        "srun started several copies of aboard",
        "2 copies of aboard were started by srun; start one: it starts the ranks on all nodes itself",
        "Each copy would start every rank on every node. One command is enough.",
        (
            "Type it in the batch script or in the shell of `salloc`, without `srun`; or as one task: `srun --nodes=1"
            " --ntasks=1 aboard launch …`."
        ),
    ),
    (
        "launch-dry",
        "an option that only shows a plan",
        "it shows a plan, and this would start one",
        "`--as` and `--json` are for looking.",
        "Add `--dry-run`, or leave them out.",
    ),
    (
        "launch-env",
        "a variable can't be given to ranks",
        "is not set here",
        "`--env NAME` takes it from this shell, where it is not set; `--env NAME=value` gives it.",
        "Set it here, or write its value.",
    ),
    (
        "launch-plan",
        "these nodes can't carry what is asked for",
        "no node would start a rank",
        "The number of ranks, slots and variables is settled before anything starts, and doesn't come out.",
        "See what would be started: `aboard launch --dry-run -- …`.",
    ),
    (
        "shell-nul",
        "an argument has a character that no program can be given",
        "ValueError: embedded null byte",
        "A NUL ends a string for the kernel.",
        "Leave it out.",
    ),
    (
        "duration",
        "a length of time has no unit",
        "is no length of time",
        "Of a number alone, half of the people would mean minutes.",
        "Write it as in `10m`, `2h`, `30s`, `1d`.",
    ),
    (
        "ranks",
        "the ranks that were asked for can't be read",
        "0-3,7",
        "Ranks are numbers and ranges.",
        "Write them as in `0-3,7`.",
    ),
    (
        "paste-flag",
        "a flag of another launcher can't be obeyed",
        "torchrun --nproc_per_node",
        (
            "Commands of torchrun, deepspeed and accelerate can be pasted behind `--`. What one of their"
            " flags says contradicts the nodes, or would be ignored."
        ),
        "Type what stands behind `fix`: most often, leave the flag out.",
    ),
    (
        "paste-config",
        "a config of accelerate can't be obeyed",
        "accelerate launch --config_file",
        "It says something that contradicts the nodes, or that would be ignored.",
        "Change the lines that are named, or give the script alone: `aboard launch -- train.py`.",
    ),
    (
        "paste-master",
        "the master of the pasted command is no node of ours",
        "--master_addr",
        "Aboard picks the first node, and a port that it has just seen bind. A pasted one must agree.",
        "Leave `--master_addr` and `--master_port` out.",
    ),
    (
        "paste-script",
        "the pasted command has no script",
        "starts no run; accelerate launch does",
        "There is nothing that ranks could run.",
        "Put the script behind the launcher: `aboard launch -- torchrun train.py`.",
    ),
    (
        "paste-wrapped",
        "the pasted command starts a launcher by itself",
        "starts deepspeed by itself, so every rank would start a run of its own",
        "A script around deepspeed or torchrun (deepy.py of gpt-neox, a shell script) would be run by every rank.",
        "Type what it starts: `aboard launch -- deepspeed train.py …`.",
    ),
    (
        "paste-slots",
        "the pasted command asks for more slots than there are",
        "has fewer slots than",
        "It names GPUs by number, and a node has fewer.",
        "Ask for fewer, or give the nodes more slots in aboard.yaml.",
    ),
    (
        "export-deepspeed",
        "the plan can't be said to DeepSpeed's launcher",
        "deepspeed --hostfile",
        (
            "It starts one command on all nodes, through a shell: what a node has of its own, and some characters,"
            " can't be said to it."
        ),
        "Give all nodes the same, or look at it otherwise: `aboard launch --dry-run --as torchrun -- …`.",
    ),
    (
        "check-subject",
        "there is no such subject of a check",
        "no subject",
        "`--only` and `--skip` name subjects.",
        "`aboard check --help` lists them.",
    ),
    (
        "check-fix",
        "--fix has nothing to mend",
        "--fix ends leftovers",
        "It ends what earlier runs left on the nodes, which the subject `host` looks for.",
        "Leave `--fix` out, or let `host` be asked.",
    ),
    (
        "init",
        "it is not clear which nodes are meant",
        "no node is named",
        "aboard.yaml is written for nodes that are named, or that a hostfile has; one of both.",
        "`aboard init 'gpu[01-16]'`, or `aboard init --hostfile FILE`.",
    ),
    (
        "init-exists",
        "there is an aboard.yaml already",
        "the file is already there",
        "It is never overwritten.",
        "Keep it, or choose another name: `-o FILE`.",
    ),
    (
        "init-write",
        "aboard.yaml can't be written here",
        "can't be written: Permission denied",
        "The directory is not yours, or its disk is full.",
        "Choose another place: `aboard init … -o FILE`.",
    ),
)

COMMANDS = Subject(
    name="commands",
    title="what was typed can be obeyed",
    probes=(),
    rules=(),
    stories=stories(_ROWS),
    asked="aboard",
)
