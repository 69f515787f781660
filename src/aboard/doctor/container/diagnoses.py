"""Diagnoses of containers that do not start, by the messages of Apptainer, Singularity, Podman and Docker."""

from aboard.diagnoses.diagnosis import RunFailure
from aboard.diagnoses.failure_class import Circumstance, FailureClass
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.output_patterns import hint, last_words, refusal

_SCHEMA = "in aboard.yaml"
# What a check can't find out without the container.
_UNKNOWN = ("unknown-software", "unknown-torch")

NO_RUNTIME = RunFailure(
    code="container-runtime-missing",
    restart=Circumstance.BY_EXTENT,
    precedence=360,
    leads_to=_UNKNOWN,
    title="a node does not have the container runtime",
    symptoms=(
        "can't start apptainer: No such file or directory",
        'Error: default OCI runtime "crun" not found: invalid argument',
    ),
    explanation="The container runtime, or a program that it needs, is not installed on this node or not on the PATH of"
    " a non-interactive login.",
    remedy="Install the runtime on every node, or load it with `setup: [module load apptainer]` in aboard.yaml.",
    fixes={
        "": (
            "command -v {runtime}    # on {node}; if a module provides it: `setup: [module load {runtime}]` " + _SCHEMA
        ),
        "part": "{runtime} info    # on {node}; install what it lacks",
        "log": "command -v apptainer singularity podman docker    # on {node}; is the runtime installed?",
    },
    patterns=(
        # The name is compared with the run's own runtime.
        last_words(r"can't start (?P<program>\S+): .*No such file"),
        last_words(r"exec: (?P<program>apptainer|singularity|podman|docker): not found"),
        refusal(
            r"(?:srun: error: .*execve\(\): |command not found: |: )(?P<program>apptainer|singularity|podman|docker)"
            r": (?:command not found|No such file or directory)"
        ),
        refusal(
            r"default OCI runtime \"(?P<part>\w+)\" not found|could not find a working (?P<part2>conmon) binary"
            r"|container-init binary not found on the host",
            fix="part",
        ),
    ),
)

DAEMON = RunFailure(
    code="container-daemon",
    restart=FailureClass.NODE,
    precedence=363,
    leads_to=_UNKNOWN,
    title="Docker's daemon can't be used",
    symptoms=(
        "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
    ),
    explanation="Docker starts containers through a daemon. Either it is not running on this node, or this user may not"
    " use its socket.",
    remedy="Members of the group `docker` may use the socket, and with it act as root on the node. Apptainer and"
    " rootless Podman need no daemon.",
    fixes={
        "group": (
            "sudo usermod -aG docker $USER    # on {node}; members of this group are root there."
            " Without it: `runtime: podman` or `apptainer` " + _SCHEMA
        ),
        "start": "sudo systemctl start docker    # on {node}",
    },
    patterns=(
        refusal(
            r"permission denied while trying to connect to the [Dd]ocker|dial unix \S*docker\.sock: connect: permission"
            r" denied",
            "This user may not use the socket of Docker's daemon.",
            fix="group",
        ),
        refusal(
            r"Cannot connect to the Docker daemon|failed to connect to the docker API",
            "Docker's daemon is not running on this node.",
            fix="start",
        ),
    ),
)

USER_NAMESPACES = RunFailure(
    code="container-user-namespaces",
    restart=Circumstance.BY_EXTENT,
    precedence=200,
    leads_to=_UNKNOWN,
    title="a node does not allow user namespaces",
    symptoms=(
        "Failed to create user namespace: maximum number of user namespaces exceeded",
        "cannot clone: No space left on device",
        "user namespaces are not enabled in /proc/sys/user/max_user_namespaces",
    ),
    explanation="Without root, Apptainer and Podman run containers in a user namespace, and this node's kernel or its"
    " security module forbids users to create one.",
    remedy="An administrator can allow user namespaces, or install Apptainer with its setuid starter"
    " (package apptainer-suid).",
    fixes="sysctl user.max_user_namespaces kernel.unprivileged_userns_clone"
    " kernel.apparmor_restrict_unprivileged_userns    # on {node}; good values are > 0, 1 and 0\n"
    "sudo sysctl -w user.max_user_namespaces=15000    # on {node}; if it is 0",
    patterns=refusal(
        r"Failed to create (?:user|mount) namespace|user namespaces are not enabled|cannot clone: (?:No space left on"
        r" device|Operation not permitted|Invalid argument|Permission denied)|failed to create user namespace"
    ),
)

SUBORDINATE_IDS = RunFailure(
    code="container-subordinate-ids",
    restart=Circumstance.BY_EXTENT,
    precedence=380,
    leads_to=_UNKNOWN,
    title="a user has no subordinate ids for rootless containers",
    symptoms=(
        'cannot find UID/GID for user crew: no subuid ranges found for user "crew" in /etc/subuid',
        "newuidmap: write to uid_map failed: Operation not permitted",
        "potentially insufficient UIDs or GIDs available in user namespace",
    ),
    explanation="Rootless Podman maps the users of an image to the subordinate ids in /etc/subuid and /etc/subgid, with"
    " the setuid programs newuidmap and newgidmap. This node lacks the ids or the programs.",
    fixes={
        "": "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER    # on {node}\n"
        "podman system migrate    # on {node}; then launch again",
        "program": "ls -l /usr/bin/newuidmap /usr/bin/newgidmap    # on {node}; both must be setuid root (package"
        " uidmap)\n"
        "sudo chmod u+s /usr/bin/newuidmap /usr/bin/newgidmap    # on {node}; if they are not",
    },
    patterns=(
        refusal(
            r"newuidmap: write to uid_map failed|newgidmap: write to gid_map failed|\"new[ug]idmap\": executable file"
            r" not found|cannot set up namespace using \"\S*new[ug]idmap\"",
            "Podman could not map the users of the image: newuidmap or newgidmap is missing, or not setuid root.",
            fix="program",
            precedence=210,
        ),
        refusal(
            r"no sub[ug]id ranges found for user|potentially insufficient UIDs or GIDs available in user namespace"
            r"|newuidmap: uid range .* not allowed",
            weight=2,
        ),
    ),
)

BIND = RunFailure(
    code="container-bind",
    restart=Circumstance.BY_EXTENT,
    precedence=366,
    leads_to=_UNKNOWN,
    title="a path that the container needs is missing on a node",
    symptoms=(
        "mount source /data doesn't exist",
        "Error: statfs /data: no such file or directory",
        'Error: workdir "/workspace" does not exist on container',
    ),
    explanation="A directory that is bound into the container, or its working directory, does not exist.",
    fixes={
        "source": (
            "ls -ld {path}    # on {node}; create it, or remove it where it was bound: in the pasted command or script"
            " (--bind, --volume), or from `container.binds` " + _SCHEMA
        ),
        "workdir": Advice("binds: [/path/on/the/node:{path}]    # under `container:` in aboard.yaml"),
    },
    patterns=(
        refusal(
            r"mount source (?P<path>\S+) doesn't exist|Error: statfs (?P<path2>\S+): no such file or directory"
            r"|bind source path does not exist: (?P<path3>\S+?)\.?$"
            r"|Error: stat (?P<path4>\S+): no such file or directory",
            "The directory to bind into the container does not exist on the node.",
            fix="source",
        ),
        refusal(
            r"failed to set working directory: chdir (?P<path>\S+): no such|Error: workdir \"(?P<path2>[^\"]+)\" does"
            r" not exist on container",
            "The working directory does not exist inside the container, because nothing is bound there.",
            fix="workdir",
        ),
    ),
)

STORAGE = RunFailure(
    code="container-storage",
    restart=FailureClass.NODE,
    precedence=369,
    leads_to=_UNKNOWN,
    title="Podman's storage does not work on a node",
    symptoms=(
        'User-selected graph driver "overlay" overwritten by graph driver "vfs" from database',
        "kernel does not support overlay fs: 'overlay' is not supported over nfs",
    ),
    explanation="Podman keeps images in the user's home. Its storage driver does not work on that file system, or the"
    " storage was made with another driver.",
    fixes="podman info | grep -E 'graphDriverName|graphRoot:'    # on {node};"
    " on NFS, set another graphroot in ~/.config/containers/storage.conf",
    patterns=(
        refusal(
            r"(?:'overlay'|overlay) is not supported over|kernel does not support overlay fs"
            r"|prior storage driver .* failed|driver not supported: |failed to mount overlay for metacopy check"
        ),
    ),
)

OPTION = RunFailure(
    code="container-option",
    restart=FailureClass.PROGRAM,
    precedence=372,
    leads_to=_UNKNOWN,
    title="a container runtime refuses one of its options",
    symptoms=(
        'Error for command "exec": unknown flag: --fnord',
        "crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied",
    ),
    explanation="The runtime does not know an option in `container.options`, or this user may not use it.",
    fixes={
        "": "{runtime} --version    # on {node}; change or remove the option in `container.options` " + _SCHEMA,
        "log": "apptainer exec --help; podman run --help    # on {node}",
    },
    patterns=refusal(
        r"(?:Error for command \"\w+\"|Error|docker): unknown (?:shorthand )?flag: '?(?P<option>\S+)"
        r"|crun: setrlimit `(?P<limit>\w+)`: Operation not permitted|\b\w{1,100} is not a valid bind option"
    ),
)

GPU = RunFailure(
    code="container-gpu",
    restart=Circumstance.BY_EXTENT,
    precedence=375,
    leads_to=_UNKNOWN,
    title="a container has no GPU",
    symptoms=(
        "Could not find any nv files on this host!",
        "nvidia-container-cli: initialization error",
        "setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
    ),
    explanation="Either the host has no driver, or the container was started without access to the GPUs.",
    fixes={
        "": "nvidia-smi    # on {node}, outside the container: is there a driver?\n"
        "apptainer exec --nv …    # Docker: --gpus all, with nvidia-container-toolkit installed",
        "setting": Advice("container: {{gpus: auto}}    # in aboard.yaml, without options that pass or hide devices"),
        "cdi": "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml    # on {node}; describes its GPUs to"
        " Podman",
    },
    patterns=(
        refusal(
            r"Could not find any nv files on this host|nvidia-container-cli: (?:initialization|mount) error"
            r"|could not select device driver .* capabilities: \[\[gpu\]\]|nvidia-container-cli: .*driver"
        ),
        refusal(
            r"unresolvable CDI devices (?P<device>\S+)",
            "Podman finds GPUs through CDI files, and this node has none for its GPUs.",
            fix="cdi",
        ),
    ),
)

NOT_STARTED = RunFailure(
    code="container-not-started",
    restart=Circumstance.BY_EXTENT,
    leads_to=_UNKNOWN,
    title="a container could not be started",
    symptoms=("slurmstepd: error: pyxis: container start failed", "FATAL:   container creation failed: "),
    explanation="The container runtime reported an error before the program inside started.",
    fixes={
        "": "{enter:shell apptainer exec IMAGE} true    # on {node}; shows the same error without a launch",
        "directory": "ls -ld {path}    # on {node}; APPTAINER_TMPDIR must be a directory that you can write to",
        "check": "{line:shell}    # shows the whole message",
        "run-script": Advice("type `apptainer exec` instead of `apptainer run`, or add a %runscript to the image"),
        "log": "ls -l IMAGE; df -h /tmp    # on {node}; is the image there, and is there space to unpack it?",
        "square": Advice("--container-image=./{image}    # with ./ or the whole path, pyxis takes it for a file"),
        "plugin": "cat /etc/slurm/plugstack.conf /etc/slurm/plugstack.conf.d/*    # on {node} and here: pyxis must be"
        " set up alike",
    },
    patterns=(
        hint(
            r"importing docker image: (?P<image>[^/\s:]+\.sqsh)",
            "pyxis takes {image} for the name of an image in a registry, since it has no `/`.",
            fix="square",
            refines=("container-not-started",),
        ),
        refusal(
            r"failed to execute: (?P<path>/\S+): No such file",
            "The root file system in the container has no {path}: the image was unpacked only in part, or has no"
            " shell.",
        ),
        refusal(
            r"SPANK plugin \"pyxis\" option \S+ not found|pyxis: couldn't mkdir (?P<path>\S+?):",
            "pyxis is not set up on this node as Slurm expects: the plugin is missing, or its runtime directory"
            " (runtime_path) can't be made.",
            fix="plugin",
        ),
        refusal(
            r"slurmstepd-(?P<node>[\w.-]+): error: pyxis: |error: pyxis: |enroot.*(?:ERROR|error)",
            "Usually the image is missing on this node, or there is no space to unpack it.",
            weight=2,
        ),
        last_words(
            r"can't unpack an image to (?P<path>\S+): ",
            "An image can't be unpacked in this directory.",
            fix="directory",
        ),
        last_words(r"can't unpack \S+: ", "The image could not be unpacked for the ranks of this node.", weight=2),
        last_words(
            r"FATAL: +image has no run script|There is no runscript defined for this container",
            "`apptainer run` starts the image's run script, and this image has none.",
            fix="run-script",
        ),
        refusal(
            r"FATAL: +(?:container creation failed|could not open image|[Uu]nable to handle|image|[Ww]hile \w+ing) ?"
            r"|docker: Error response from daemon: |Error: (?:crun|runc|OCI runtime)[ :]",
            weight=2,
        ),
    ),
)
