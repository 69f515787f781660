"""Every flag of `docker run` 27 and `podman run` 4.3."""

from aboard.core.launchers.containers.apptainer_flags import NOTHING, OWN_NETWORK
from aboard.core.launchers.flag_parser import FlagGrammar
from aboard.core.launchers.flag_table import LauncherFlag, list_flags, obey_flag, obey_switch, refuse_flag, skip_flag
from aboard.diagnoses.usage import pasted_commands

_HOST_NETWORK = "is not needed: ranks use the node's own network"
_OWN_CONTAINERS = "is not used: each rank has a container of its own, which Aboard finds by its label"
_NO_TERMINAL = "is not used: ranks have no terminal"
_OWN_LOGS = "is not needed: each rank has its own log in the run directory (aboard logs --rank N)"
_OWN_SIGNALS = "is not used: Aboard stops the ranks itself"
_NO_HEALTH = "is not used: Aboard watches the ranks itself"
_PULL = "is not used: an image that a node lacks is pulled"

# Given to the runtime on each node as they are.
PASSED_FLAGS: tuple[LauncherFlag, ...] = (
    *list_flags(
        obey_flag,
        """--add-host --annotation --blkio-weight --blkio-weight-device --cap-add --cap-drop --cgroup-parent --cgroupns
        --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime --cpu-shares|-c --cpus --cpuset-cpus --cpuset-mems
        --device-cgroup-rule --device-read-bps --device-read-iops --device-write-bps --device-write-iops --dns
        --dns-option|--dns-opt --dns-search --domainname --group-add --hostname|-h --isolation --kernel-memory
        --label|-l --label-file --memory|-m --memory-reservation --memory-swap --memory-swappiness --oom-score-adj
        --pids-limit --platform --runtime --security-opt --storage-opt --sysctl --tmpfs --userns --uts
        --volume-driver --volumes-from""",
    ),
    *list_flags(obey_switch, "--disable-content-trust --oom-kill-disable --privileged --read-only"),
)
DOCKER_PASSED_FLAGS: tuple[LauncherFlag, ...] = (obey_flag("--ulimit"),)
# Podman's own, given to it as they are.
PODMAN_PASSED_FLAGS: tuple[LauncherFlag, ...] = (
    *list_flags(
        obey_flag,
        """--arch --authfile --cgroup-conf --cgroups --chrootdirs --env-merge --gidmap --hostuser --image-volume
        --init-path --os --passwd-entry --personality --seccomp-policy --secret --subgidname --subuidname --tz
        --uidmap --umask --unsetenv --variant""",
    ),
    *list_flags(
        obey_switch, "--env-host --http-proxy --no-hosts --passwd --read-only-tmpfs --tls-verify --unsetenv-all"
    ),
)
_SHARED_FLAGS: tuple[LauncherFlag, ...] = (
    refuse_flag(
        "--help",
        takes=NOTHING,
        note="prints help and starts nothing",
        fix=pasted_commands.FLAG.fix("help", launcher="docker run"),
    ),
    *PASSED_FLAGS,
    *list_flags(obey_flag, "--device --entrypoint --env|-e --env-file --gpus --mount --volume|-v --workdir|-w"),
    *list_flags(skip_flag, "--attach|-a --log-driver --log-opt", note=_OWN_LOGS),
    *list_flags(skip_flag, "--cidfile --name", note=_OWN_CONTAINERS),
    *list_flags(skip_flag, "--expose --publish|-p", note=_HOST_NETWORK),
    skip_flag("--publish-all", "-P", takes=NOTHING, note=_HOST_NETWORK),
    skip_flag("--detach-keys", note=_NO_TERMINAL),
    *list_flags(skip_flag, "--interactive|-i --tty|-t", takes=NOTHING, note=_NO_TERMINAL),
    *list_flags(
        skip_flag,
        """--health-cmd --health-interval --health-retries --health-start-interval --health-start-period
        --health-timeout""",
        note=_NO_HEALTH,
    ),
    skip_flag("--no-healthcheck", takes=NOTHING, note=_NO_HEALTH, accepted=("true",)),
    *list_flags(skip_flag, "--init --rm", takes=NOTHING, note="is set by Aboard", accepted=("true",)),
    skip_flag("--ipc", note="is not used: the ranks of a node share memory", accepted=("host",)),
    skip_flag("--pid", note="is not needed: Aboard ends all processes of a rank", accepted=("host",)),
    skip_flag("--pull", note=_PULL, accepted=("missing",)),
    skip_flag("--quiet", "-q", takes=NOTHING, note=_PULL, accepted=("true",)),
    skip_flag("--shm-size", note="is not needed: ranks use the node's own /dev/shm"),
    skip_flag("--sig-proxy", takes=NOTHING, note=_OWN_SIGNALS, accepted=("true",)),
    *list_flags(skip_flag, "--stop-signal --stop-timeout", note=_OWN_SIGNALS),
    skip_flag("--user", "-u", note="is not used: files that ranks write belong to you"),
    refuse_flag(
        "--detach",
        "-d",
        takes=NOTHING,
        note="the container would run on without Aboard",
        fix=pasted_commands.CONTAINER.fix("detach"),
    ),
    *list_flags(
        refuse_flag, "--ip --ip6 --link --link-local-ip --mac-address --network-alias|--net-alias", note=OWN_NETWORK
    ),
    refuse_flag(
        "--network", "--net", note=OWN_NETWORK, fix=pasted_commands.CONTAINER.fix("network"), accepted=("host",)
    ),
    refuse_flag("--restart", note="Aboard restarts a run as a whole", accepted=("no",)),
)
GRAMMAR = FlagGrammar(launcher="docker run", short_forms=False, flags=(*_SHARED_FLAGS, *DOCKER_PASSED_FLAGS))
PODMAN_GRAMMAR = FlagGrammar(
    launcher="podman run",
    short_forms=False,
    flags=(
        *_SHARED_FLAGS,
        *PODMAN_PASSED_FLAGS,
        *list_flags(skip_flag, "--conmon-pidfile --pidfile", note=_OWN_CONTAINERS),
        skip_flag("--replace", takes=NOTHING, note=_OWN_CONTAINERS),
        *list_flags(skip_flag, "--health-on-failure --sdnotify", note=_NO_HEALTH),
        skip_flag("--ulimit", note="is not used: ranks have the node's own limits", accepted=("host",)),
        *list_flags(refuse_flag, "--pod --pod-id-file --requires", note="each rank has a container of its own"),
        refuse_flag("--preserve-fds", note="ranks inherit no files"),
        refuse_flag("--rmi", takes=NOTHING, note="other ranks may still need the image"),
        refuse_flag("--rootfs", takes=NOTHING, note="Aboard runs images only"),
        refuse_flag("--systemd", note="ranks are not services", accepted=("true", "false")),
        refuse_flag("--timeout", note="Aboard stops the ranks itself"),
    ),
)
