"""The flags that srun and sbatch share (Slurm 22.05): what to ask Slurm for."""

from aboard.core.launchers.flag_table import (
    FlagValueKind,
    LauncherFlag,
    obey_flag,
    obey_switch,
    refuse_flag,
    refuse_help,
    skip_flag,
)
from aboard.diagnoses.usage import pasted_commands

OWN_LOGS = "is not needed: each rank has its own log in the run directory (aboard logs --rank N)"
_OWN_LAYOUT = "is not needed: Aboard numbers the ranks node by node, and each rank sees all cores and GPUs of its node"
_OWN_MESSAGES = "is not needed: Aboard prints its own messages"
_ONLY_PRINTS = "prints something and starts nothing"

NUMBER, NOTHING, OPTIONAL = FlagValueKind.NUMBER, FlagValueKind.NOTHING, FlagValueKind.OPTIONAL

# Read into the request of the job, or into the layout of the ranks.
REQUEST_FLAGS = (
    obey_flag("--nodes", "-N"),
    obey_flag("--ntasks", "-n", takes=NUMBER),
    obey_flag("--ntasks-per-node", "--tasks-per-node", takes=NUMBER),
    obey_flag("--cpus-per-task", "-c", takes=NUMBER),
    obey_flag("--gpus", "-G"),
    obey_flag("--gpus-per-node"),
    obey_flag("--gpus-per-task"),
    obey_flag("--gres"),
    obey_flag("--nodelist", "-w"),
    obey_flag("--exclude", "-x"),
    obey_flag("--partition", "-p"),
    obey_flag("--account", "-A"),
    obey_flag("--time", "-t"),
    obey_flag("--qos", "-q"),
    obey_flag("--constraint", "-C"),
    obey_flag("--chdir", "-D"),
    obey_flag("--export"),
)
# Passed on to sbatch as they are.
PASSED_FLAGS = (
    *(
        obey_flag(*names)
        for names in (
            ("--acctg-freq",),
            ("--bb",),
            ("--bbf",),
            ("--begin", "-b"),
            ("--cluster-constraint",),
            ("--comment",),
            ("--core-spec", "-S"),
            ("--cores-per-socket",),
            ("--cpu-freq",),
            ("--cpus-per-gpu",),
            ("--deadline",),
            ("--delay-boot",),
            ("--dependency", "-d"),
            ("--extra-node-info", "-B"),
            ("--gpu-freq",),
            ("--gpus-per-socket",),
            ("--gres-flags",),
            ("--hint",),
            ("--licenses", "-L"),
            ("--mail-type",),
            ("--mail-user",),
            ("--mcs-label",),
            ("--mem",),
            ("--mem-per-cpu",),
            ("--mem-per-gpu",),
            ("--mincpus",),
            ("--network",),
            ("--power",),
            ("--prefer",),
            ("--priority",),
            ("--profile",),
            ("--reservation",),
            ("--sockets-per-node",),
            ("--switches",),
            ("--thread-spec",),
            ("--threads-per-core",),
            ("--time-min",),
            ("--tmp",),
            ("--wckey",),
        )
    ),
    *(obey_flag(name, takes=OPTIONAL) for name in ("--exclusive", "--nice")),
    *(
        obey_switch(*names)
        for names in (
            ("--contiguous",),
            ("--hold", "-H"),
            ("--overcommit", "-O"),
            ("--oversubscribe", "-s"),
            ("--reboot",),
            ("--spread-job",),
            ("--use-min-nodes",),
        )
    ),
)
SAME_FLAGS = (
    skip_flag("--distribution", "-m", note=_OWN_LAYOUT, accepted=("block", "*")),
    skip_flag("--mem-bind", note=_OWN_LAYOUT, accepted=("none",)),
    skip_flag("--gpu-bind", note=_OWN_LAYOUT, accepted=("none",)),
    skip_flag("--job-name", "-J", note="is not used: the job has the name of its run"),
    skip_flag("--ntasks-per-core", note=_OWN_LAYOUT),
    skip_flag("--ntasks-per-socket", note=_OWN_LAYOUT),
    skip_flag("--no-kill", "-k", takes=OPTIONAL, note="is not needed: Aboard's jobs always have it", accepted=("",)),
    skip_flag("--open-mode", note=OWN_LOGS, accepted=("append", "truncate")),
    skip_flag("--output", "-o", note=OWN_LOGS),
    skip_flag("--error", "-e", note=OWN_LOGS),
    skip_flag("--propagate", takes=OPTIONAL, note="is not needed: ranks have the limits of their node"),
    skip_flag("--quiet", "-Q", takes=NOTHING, note=_OWN_MESSAGES, accepted=("true",)),
    skip_flag("--verbose", "-v", takes=NOTHING, note=_OWN_MESSAGES, accepted=("true",)),
    skip_flag("--signal", note="is not needed: Aboard stops the ranks before the time limit"),
    refuse_flag(
        "--ntasks-per-gpu",
        note="the number of GPUs is not known here",
        fix=pasted_commands.FLAG.fix("tasks-per-node"),
    ),
    refuse_flag("--clusters", "-M", note="Aboard submits to the cluster of this machine only"),
    refuse_flag("--container", note="Aboard doesn't start containers of Slurm"),
    refuse_flag("--nodefile", "-F", note="Aboard doesn't read it", fix=pasted_commands.FLAG.fix("nodelist")),
    refuse_flag("--input", "-i", note="ranks have no input", accepted=("none", "/dev/null")),
    refuse_flag("--uid", note="Aboard runs as you"),
    refuse_flag("--gid", note="Aboard runs as you"),
    refuse_flag("--test-only", takes=NOTHING, note="starts nothing", fix=pasted_commands.FLAG.fix("dry-run")),
    refuse_flag("--usage", takes=NOTHING, note=_ONLY_PRINTS),
    refuse_flag("--version", "-V", takes=NOTHING, note=_ONLY_PRINTS),
)


def list_common_flags(launcher: str) -> tuple[LauncherFlag, ...]:
    return (refuse_help(launcher), *REQUEST_FLAGS, *PASSED_FLAGS, *SAME_FLAGS)
