"""Diagnoses of invalid commands and options."""

from aboard.diagnoses.diagnosis import Diagnosis, Mistake
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.shared_fixes import SUGGESTED

COMMAND = Mistake(code="command", fixes="aboard --help")

LAUNCH_COMMAND = Mistake(code="launch-command", fixes="{typed:shell aboard launch -- train.py --lr 1e-5}")

LAUNCH_DRY = Mistake(
    code="launch-dry",
    fixes={
        "as": "aboard launch --dry-run --as {launcher} -- …",
        "json": "aboard launch --dry-run --json -- …",
        "train": "aboard train --dry-run --as sbatch",
        "both": Advice("remove --json"),
        "capture": "aboard launch --dry-run --capture … -- {command:shell}    # runs the lines before the launcher",
    },
)

LAUNCH_ENV = Mistake(code="launch-env", fixes={"file": "ls -l {file}", "value": "--env {name}=VALUE"})

LAUNCH_ALONE = Diagnosis(
    code="launch-alone",
    title="no node is named, but the environment says that there are several",
    symptoms=("is set here, but no node is named",),
    explanation="In a pod or a cloud job, the platform starts your command on every node, with NODE_RANK, WORLD_SIZE"
    " and MASTER_ADDR for torchrun. Aboard is started once and starts the ranks on all nodes. Started on each node,"
    " every node would train a model of its own. Type the command on one machine that can log in to the others by ssh,"
    " and name the nodes there.",
    fixes="aboard init    # once, on one machine: finds the nodes, writes aboard.yaml; then type the command again\n"
    "{alone:shell}    # runs on this machine alone",
)

LAUNCH_SPARES = Mistake(code="launch-spares", fixes="--spares 1    # of the nodes {nodes}")

LAUNCH_MIN_NODES = Mistake(
    code="launch-min-nodes",
    fixes={
        "launch": Advice("remove min_nodes, and reserve a node instead: --spares 1"),
        "batch": Advice("set train.global_batch_size to the sequences of one step, or remove min_nodes"),
        "fewer": "--min-nodes {most}",
    },
)

LAUNCH_SYNC = Mistake(
    code="launch-sync",
    fixes={
        "limit": "du -ah | sort -h | tail    # what is large? Exclude it in .gitignore, or: --sync-limit {size}",
        "size": Advice("write a number and a unit, for example --sync-limit 5GB"),
    },
)

SYNC_HOME = Diagnosis(
    code="sync-home",
    title="aboard sync would send the home directory, keys or tokens",
    symptoms=("is your home directory", "contains your home directory", "has your keys or tokens"),
    explanation="A home directory has private keys, tokens and the list of keys that may log in. Sent to a node, they"
    " would be exposed there, and would replace the node's own `~/.ssh/authorized_keys`. Aboard sends directories below"
    " it, but none with credentials, such as `~/.ssh`, `~/.aws`, `~/.kube` or `~/.netrc`.",
    fixes="mkdir ~/project && cd ~/project    # move your code and aboard.yaml there, then run the command again",
)

SYNC_SYSTEM = Diagnosis(
    code="sync-system-path",
    title="a path leads through /proc, /dev or /sys",
    symptoms=("leads through /proc",),
    explanation="Such a path means something different on each machine and in each process: `/proc/self/cwd` is the"
    " working directory here and your home directory on a node. Aboard copies nothing from or to these directories,"
    " even if a symbolic link leads there.",
    fixes="namei -l {path}    # shows where it leads through; name the real path of the files",
)

SYNC_NODES = Mistake(
    code="sync-no-nodes",
    fixes="aboard sync --on gpu01 --on gpu02    # names the nodes here\n"
    "aboard init gpu01 gpu02    # or writes aboard.yaml, which every command reads",
)

CHECK_SUBJECT = Mistake(code="check-subject", fixes=SUGGESTED)

CHECK_FIX = Mistake(code="check-fix", fixes=Advice("remove --fix, or include the 'host' subject"))

INIT = Mistake(
    code="init",
    fixes={
        "both": Advice("leave one of them out"),
        "none": Advice("run: aboard init gpu[01-16], or: aboard init --hostfile FILE"),
    },
)

INIT_ASK = Mistake(code="init-ask", fixes="aboard init --yes")

INIT_EXISTS = Mistake(code="init-exists", fixes="keep it, or choose a different name: aboard init … -o {other}")

INIT_WRITE = Diagnosis(
    code="init-write",
    title="aboard.yaml can't be written here",
    symptoms=("cannot write the file: Permission denied",),
    explanation="The directory may belong to another user, or its disk may be full.",
    fixes="aboard init … -o FILE",
)

STOP_NONE = Mistake(
    code="stop-none", fixes="aboard status    # lists the runs; stop a run on the machine that started it"
)

STOP_WHICH = Mistake(code="stop-which", fixes="{stop:shell aboard stop RUN}")

STOP_SLOW = Diagnosis(
    code="stop-slow",
    title="the run is slow to stop",
    symptoms=("did not stop within",),
    explanation="Ranks get a grace period to save a final checkpoint; those that have not exited by then are killed.",
    fixes="aboard stop {run} --now",
)

LOGS_NOTHING = Mistake(
    code="logs-nothing",
    fixes={
        "ranks": Advice("these ranks have output: {ranks}"),
        "wait": "aboard logs --follow    # waits for new output",
        "nobody": Advice("no node has printed anything"),
        **SUGGESTED,
    },
)

LOGS_GREP = Mistake(code="logs-grep", fixes="aboard logs --grep {pattern}    # matches it literally")

LOGS_LINES = Mistake(code="logs-lines", fixes=Advice("for example: -n 500, or -n all"))

WHY_CODE = Mistake(
    code="why-code",
    fixes={
        "log": "aboard why --log {path}    # explains this file",
        "near": "aboard why {code}    # did you mean this?",
        "list": "aboard why --codes    # lists all codes; aboard status lists all runs",
    },
)

WHY_WORDS = Mistake(code="why-words", fixes="aboard why {word}    # files go after --log")

WHY_OPTIONS = Mistake(code="why-options", fixes="aboard why --nodes NODES…    # or one of the other options")

WHY_LOG = Mistake(
    code="why-log",
    fixes={
        "empty": "aboard why --log FILE…",
        "look": "ls -l {path}",
        "fewer": Advice("pass only the failed run's logs"),
    },
)

WHY_PID = Mistake(code="why-pid", fixes="aboard why --pid 4711    # as shown by: ps -u $USER -o pid,etime,args")

WHY_NO_PROCESS = Mistake(code="why-no-process", fixes="ps -u $USER -o pid,etime,args")

WHY_NOT_PERMITTED = Mistake(code="why-not-permitted", fixes="sudo aboard why --pid {pid}")

WHY_OWN_RUN = Mistake(code="why-own-run", fixes="aboard why {run}")

WHY_NO_TRAINING = Diagnosis(
    code="why-no-training",
    title="no training job was found on these nodes",
    symptoms=("has RANK and WORLD_SIZE",),
    explanation="Aboard recognizes ranks by the environment variables that every launcher sets, and searches only your"
    " own processes.",
    fixes={
        "ended": "aboard why --log FILE…    # diagnoses the job's last output",
        "none": "aboard why --pid PID    # on the job's node, for a process without these variables",
    },
)

WHY_NO_NODE = Diagnosis(
    code="why-no-node",
    title="none of the nodes responds",
    symptoms=("no node responds",),
    explanation="Aboard inspects the nodes' processes over ssh, and can't connect to any node.",
    fixes="aboard check {nodes:words} --only reach",
)
