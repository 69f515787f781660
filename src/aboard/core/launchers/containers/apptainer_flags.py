"""Every flag of `apptainer exec` and `apptainer run` 1.4, which Singularity has too."""

from aboard.core.launchers.flag_parser import FlagGrammar
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

NOTHING = FlagValueKind.NOTHING

OWN_NETWORK = "ranks need the node's own network"
_NO_TERMINAL = "it asks a question, and ranks have no terminal"
_SHARED_MEMORY = "is not used: the ranks of a node share memory"

# Given to the runtime on each node as they are.
PASSED_FLAGS: tuple[LauncherFlag, ...] = (
    obey_flag("--add-caps"),
    obey_switch("--allow-setuid"),
    obey_flag("--app"),
    obey_flag("--apply-cgroups"),
    obey_flag("--authfile"),
    obey_flag("--blkio-weight"),
    obey_flag("--blkio-weight-device"),
    obey_switch("--cleanenv", "-e"),
    obey_switch("--contain", "-c"),
    obey_flag("--cpu-shares"),
    obey_flag("--cpus"),
    obey_flag("--cpuset-cpus"),
    obey_flag("--cpuset-mems"),
    obey_switch("--disable-cache"),
    obey_flag("--dns"),
    obey_flag("--docker-host"),
    obey_flag("--drop-caps"),
    obey_switch("--fakeroot", "-f"),
    obey_flag("--home", "-H"),
    obey_flag("--hostname"),
    obey_switch("--keep-privs"),
    obey_flag("--memory"),
    obey_flag("--memory-reservation"),
    obey_flag("--memory-swap"),
    obey_switch("--no-eval"),
    obey_switch("--no-home"),
    obey_switch("--no-https", "--nohttps"),
    obey_switch("--no-init"),
    obey_flag("--no-mount"),
    obey_switch("--no-pid"),
    obey_switch("--no-privs"),
    obey_switch("--no-umask"),
    obey_switch("--nvccli"),
    obey_switch("--oom-kill-disable"),
    obey_flag("--overlay", "-o"),
    obey_flag("--pem-path"),
    obey_flag("--pids-limit"),
    obey_flag("--scratch", "-S"),
    obey_flag("--security"),
    obey_switch("--unsquash"),
    obey_switch("--userns", "-u"),
    obey_switch("--uts"),
    obey_flag("--workdir", "-W"),
    obey_switch("--writable", "-w"),
)
GRAMMAR = FlagGrammar(
    launcher="apptainer",
    short_forms=False,
    flags=(
        refuse_help("apptainer exec"),
        *PASSED_FLAGS,
        obey_flag("--bind", "-B"),
        obey_switch("--compat"),
        obey_switch("--containall", "-C"),
        obey_flag("--env"),
        obey_flag("--env-file"),
        obey_flag("--mount"),
        obey_switch("--nv"),
        obey_flag("--pwd", "--cwd"),
        obey_switch("--rocm"),
        obey_switch("--writable-tmpfs"),
        skip_flag("--ipc", "-i", takes=NOTHING, note=_SHARED_MEMORY),
        skip_flag("--pid", "-p", takes=NOTHING, note="is not needed: Aboard ends all processes of a rank"),
        skip_flag("--sharens", takes=NOTHING, note="is not needed: each node unpacks the image at most once"),
        refuse_flag("--docker-login", takes=NOTHING, note=_NO_TERMINAL),
        refuse_flag("--fusemount", note="it runs the ranks in a PID namespace of their own"),
        refuse_flag("--net", "-n", takes=NOTHING, note=OWN_NETWORK),
        refuse_flag("--netns-path", note=OWN_NETWORK),
        refuse_flag("--network", note=OWN_NETWORK, accepted=("host",)),
        refuse_flag("--network-args", note=OWN_NETWORK),
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
        obey_switch("--debug", "-d"),
        obey_switch("--nocolor"),
        obey_switch("--quiet", "-q"),
        obey_switch("--silent", "-s"),
        obey_switch("--verbose", "-v"),
    ),
)
