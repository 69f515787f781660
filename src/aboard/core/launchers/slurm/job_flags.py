"""The flags that srun and sbatch share (Slurm 22.05): what to ask Slurm for."""

from aboard.core.launchers.flag_table import (
    FlagValueKind,
    LauncherFlag,
    list_flags,
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

NUMBER, NOTHING, OPTIONAL = FlagValueKind.NUMBER, FlagValueKind.NOTHING, FlagValueKind.OPTIONAL

# Read into the request of the job, or into the layout of the ranks.
REQUEST_FLAGS = (
    *list_flags(
        obey_flag,
        """--nodes|-N --gpus|-G --gpus-per-node --gpus-per-task --gres --nodelist|-w --exclude|-x --partition|-p
        --account|-A --time|-t --qos|-q --constraint|-C --chdir|-D --export""",
    ),
    *list_flags(obey_flag, "--ntasks|-n --ntasks-per-node|--tasks-per-node --cpus-per-task|-c", takes=NUMBER),
)
# Passed on to sbatch as they are.
PASSED_FLAGS = (
    *list_flags(
        obey_flag,
        """--acctg-freq --bb --bbf --begin|-b --cluster-constraint --comment --core-spec|-S --cores-per-socket
        --cpu-freq --cpus-per-gpu --deadline --delay-boot --dependency|-d --extra-node-info|-B --gpu-freq
        --gpus-per-socket --gres-flags --hint --job-name|-J --licenses|-L --mail-type --mail-user --mcs-label --mem
        --mem-per-cpu --mem-per-gpu --mincpus --network --power --prefer --priority --profile --reservation
        --sockets-per-node --switches --thread-spec --threads-per-core --time-min --tmp --wckey""",
    ),
    *list_flags(obey_flag, "--exclusive --nice", takes=OPTIONAL),
    *list_flags(
        obey_switch,
        "--contiguous --hold|-H --overcommit|-O --oversubscribe|-s --reboot --spread-job --use-min-nodes",
    ),
)
SAME_FLAGS = (
    skip_flag("--distribution", "-m", note=_OWN_LAYOUT, accepted=("block", "*")),
    *list_flags(skip_flag, "--mem-bind --gpu-bind", note=_OWN_LAYOUT, accepted=("none",)),
    *list_flags(skip_flag, "--ntasks-per-core --ntasks-per-socket", note=_OWN_LAYOUT),
    skip_flag("--no-kill", "-k", takes=OPTIONAL, note="is not needed: Aboard's jobs always have it", accepted=("",)),
    skip_flag("--open-mode", note=OWN_LOGS, accepted=("append", "truncate")),
    *list_flags(skip_flag, "--output|-o --error|-e", note=OWN_LOGS),
    skip_flag("--propagate", takes=OPTIONAL, note="is not needed: ranks have the limits of their node"),
    *list_flags(skip_flag, "--quiet|-Q --verbose|-v", takes=NOTHING, note=_OWN_MESSAGES, accepted=("true",)),
    skip_flag("--signal", note="is not passed on: before the time limit, Aboard stops the ranks with SIGTERM"),
    refuse_flag(
        "--ntasks-per-gpu",
        note="the number of GPUs is not known here",
        fix=pasted_commands.FLAG.fix("tasks-per-node"),
    ),
    refuse_flag("--clusters", "-M", note="Aboard submits to the cluster of this machine only"),
    refuse_flag("--container", note="Aboard doesn't start containers of Slurm"),
    refuse_flag("--nodefile", "-F", note="Aboard doesn't read it", fix=pasted_commands.FLAG.fix("nodelist")),
    refuse_flag("--input", "-i", note="ranks have no input", accepted=("none", "/dev/null")),
    *list_flags(refuse_flag, "--uid --gid", note="Aboard runs as you"),
    refuse_flag("--test-only", takes=NOTHING, note="starts nothing", fix=pasted_commands.FLAG.fix("dry-run")),
    *list_flags(refuse_flag, "--usage --version|-V", takes=NOTHING, note="prints something and starts nothing"),
)


def list_common_flags(launcher: str) -> tuple[LauncherFlag, ...]:
    return (refuse_help(launcher), *REQUEST_FLAGS, *PASSED_FLAGS, *SAME_FLAGS)
