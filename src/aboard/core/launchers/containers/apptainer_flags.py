"""Every flag of `apptainer exec` and `apptainer run` 1.4, which Singularity has too."""

from aboard.core.launchers.flag_parser import FlagGrammar
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

NOTHING = FlagValueKind.NOTHING

OWN_NETWORK = "ranks need the node's own network"
_NO_TERMINAL = "it asks a question, and ranks have no terminal"
_SHARED_MEMORY = "is not used: the ranks of a node share memory"

# Given to the runtime on each node as they are.
PASSED_FLAGS: tuple[LauncherFlag, ...] = (
    *list_flags(
        obey_flag,
        """--add-caps --app --apply-cgroups --authfile --blkio-weight --blkio-weight-device --cpu-shares --cpus
        --cpuset-cpus --cpuset-mems --dns --docker-host --drop-caps --home|-H --hostname --memory
        --memory-reservation --memory-swap --no-mount --overlay|-o --pem-path --pids-limit --scratch|-S --security
        --workdir|-W""",
    ),
    *list_flags(
        obey_switch,
        """--allow-setuid --cleanenv|-e --contain|-c --disable-cache --fakeroot|-f --keep-privs --no-eval --no-home
        --no-https|--nohttps --no-init --no-pid --no-privs --no-umask --nvccli --oom-kill-disable --unsquash
        --userns|-u --uts --writable|-w""",
    ),
)
GRAMMAR = FlagGrammar(
    launcher="apptainer",
    short_forms=False,
    flags=(
        refuse_help("apptainer exec"),
        *PASSED_FLAGS,
        *list_flags(obey_flag, "--bind|-B --env --env-file --mount --pwd|--cwd"),
        *list_flags(obey_switch, "--compat --containall|-C --nv --rocm --writable-tmpfs"),
        skip_flag("--ipc", "-i", takes=NOTHING, note=_SHARED_MEMORY),
        skip_flag("--pid", "-p", takes=NOTHING, note="is not needed: Aboard ends all processes of a rank"),
        skip_flag("--sharens", takes=NOTHING, note="is not needed: each node unpacks the image at most once"),
        refuse_flag("--docker-login", takes=NOTHING, note=_NO_TERMINAL),
        refuse_flag("--fusemount", note="it runs the ranks in a PID namespace of their own"),
        refuse_flag("--net", "-n", takes=NOTHING, note=OWN_NETWORK),
        refuse_flag("--network", note=OWN_NETWORK, accepted=("host",)),
        *list_flags(refuse_flag, "--netns-path --network-args", note=OWN_NETWORK),
        refuse_flag(
            "--passphrase",
            takes=NOTHING,
            note=_NO_TERMINAL,
            fix=pasted_commands.CONTAINER.fix("key", flag="--pem-path"),
        ),
    ),
)
# Before the subcommand. They change only what the runtime prints.
GLOBAL_GRAMMAR = FlagGrammar(
    launcher="apptainer",
    short_forms=False,
    flags=(
        refuse_help("apptainer"),
        *list_flags(obey_switch, "--debug|-d --nocolor --quiet|-q --silent|-s --verbose|-v"),
    ),
)
