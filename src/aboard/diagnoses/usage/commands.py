"""Diagnoses of invalid commands and options."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.shared_fixes import SUGGESTED

COMMAND = Diagnosis(
    code="command",
    title="unknown command",
    symptoms=("there is no command",),
    explanation="The first word after `aboard` must be one of its commands, which `aboard --help` lists.",
    fixes="aboard --help",
)

LAUNCH_COMMAND = Diagnosis(
    code="launch-command",
    title="there is no command to launch",
    symptoms=("there is no command after --",),
    explanation="Every rank runs the command after `--`.",
    fixes="{typed:shell aboard launch -- train.py --lr 1e-5}",
)

LAUNCH_DRY = Diagnosis(
    code="launch-dry",
    title="the option requires --dry-run",
    symptoms=("this option needs --dry-run; without it, the command would start a run",),
    explanation="`--as` and `--json` print a plan, and do not start a run. The plan of a script is known once it calls"
    " its launcher: with --capture, the lines before that are run.",
    fixes={
        "as": "aboard launch --dry-run --as {launcher} -- …",
        "json": "aboard launch --dry-run --json -- …",
        "train": "aboard train --dry-run --as sbatch",
        "both": Advice("remove --json"),
        "capture": "aboard launch --dry-run --capture … -- {command:shell}    # runs the lines before the launcher",
    },
)

LAUNCH_ENV = Diagnosis(
    code="launch-env",
    title="an environment variable can't be passed to ranks",
    symptoms=("is not set in this shell",),
    explanation="`--env NAME` copies the variable from this shell, but the variable is not set here. `--env"
    " NAME=value` sets it.",
    fixes={"file": "ls -l {file}", "value": "--env {name}=VALUE"},
)

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

LAUNCH_SPARES = Diagnosis(
    code="launch-spares",
    title="the spare nodes can't be used",
    symptoms=("is not a node of this run", "no node would be left for ranks"),
    explanation="Spares are nodes of the run on which no ranks start until one of the others fails. `--spares 2` keeps"
    " the last two nodes, `--spares n9,n10` these.",
    fixes="--spares 1    # of the nodes {nodes}",
)

LAUNCH_MIN_NODES = Diagnosis(
    code="launch-min-nodes",
    title="the run can't continue on as few nodes as min_nodes says",
    symptoms=("a script can't be told to continue on fewer nodes", "train.global_batch_size is not set, so fewer"),
    explanation="`min_nodes` allows `aboard train` to continue on fewer nodes when one fails and no spare is left. Each"
    " step must then still have the same number of sequences, which `train.global_batch_size` fixes. Aboard can't tell"
    " a script's batch size, and never starts a script on fewer nodes.",
    fixes={
        "launch": Advice("remove min_nodes, and reserve a node instead: --spares 1"),
        "batch": Advice("set train.global_batch_size to the sequences of one step, or remove min_nodes"),
        "fewer": "--min-nodes {most}",
    },
)

LAUNCH_SYNC = Diagnosis(
    code="launch-sync",
    title="the working directory is larger than the limit of --sync",
    symptoms=("above the limit of",),
    explanation="`aboard launch --sync` sends the working directory to every node. Above the limit it asks first, and"
    " without a terminal it stops. `.gitignore` excludes what need not be sent, such as data and checkpoints.",
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

SYNC_NODES = Diagnosis(
    code="sync-no-nodes",
    title="aboard sync has no node to copy to",
    symptoms=("no node is named, and there is no aboard.yaml in this directory",),
    explanation="`aboard sync` takes the nodes from `--on`, from `--hostfile`, or from aboard.yaml in the current"
    " directory.",
    fixes="aboard sync --on gpu01 --on gpu02    # names the nodes here\n"
    "aboard init gpu01 gpu02    # or writes aboard.yaml, which every command reads",
)

CHECK_SUBJECT = Diagnosis(
    code="check-subject",
    title="unknown check subject",
    symptoms=("no subject",),
    explanation="`--only` and `--skip` take check subjects, such as `host` or `storage`.",
    remedy="`aboard check --help` lists the subjects.",
    fixes=SUGGESTED,
)

CHECK_FIX = Diagnosis(
    code="check-fix",
    title="--fix has nothing to fix",
    symptoms=("--fix terminates leftover processes",),
    explanation="`--fix` terminates processes left over from earlier runs. Only the `host` subject finds them.",
    fixes=Advice("remove --fix, or include the 'host' subject"),
)

INIT = Diagnosis(
    code="init",
    title="it is not clear which nodes to use",
    symptoms=("no node was given",),
    explanation="`aboard init` takes the nodes from the command line or from `--hostfile`, but not from both. With"
    " neither, it looks for /job/hostfile, ./hostfile, ~/hostfile and the hosts in ~/.ssh/config.",
    fixes={
        "both": Advice("leave one of them out"),
        "none": Advice("run: aboard init gpu[01-16], or: aboard init --hostfile FILE"),
    },
)

INIT_ASK = Diagnosis(
    code="init-ask",
    title="the nodes must be confirmed",
    symptoms=("can't ask: stdin is not a terminal",),
    explanation="Hosts in ~/.ssh/config may be anything, and a hostfile of the directory that names users may come"
    " with a repository, so Aboard asks before it contacts them. Without a terminal it can't ask.",
    fixes="aboard init --yes",
)

INIT_EXISTS = Diagnosis(
    code="init-exists",
    title="aboard.yaml already lists different nodes",
    symptoms=("the file already exists",),
    explanation="Aboard adds nodes to a file without a `cluster` section, and never changes one that has it.",
    fixes="keep it, or choose a different name: aboard init … -o {other}",
)

INIT_WRITE = Diagnosis(
    code="init-write",
    title="aboard.yaml can't be written here",
    symptoms=("cannot write the file: Permission denied",),
    explanation="The directory may belong to another user, or its disk may be full.",
    fixes="aboard init … -o FILE",
)

STOP_NONE = Diagnosis(
    code="stop-none",
    title="there is nothing to stop",
    symptoms=("none of your runs is active on this machine",),
    explanation="You have no active run on this machine. A run is stopped on the machine that started it.",
    fixes="aboard status    # lists the runs; stop a run on the machine that started it",
)

STOP_WHICH = Diagnosis(
    code="stop-which",
    title="several runs are active",
    symptoms=("2 runs are active",),
    explanation="Aboard does not guess which run to stop.",
    fixes="{stop:shell aboard stop RUN}",
)

STOP_SLOW = Diagnosis(
    code="stop-slow",
    title="the run is slow to stop",
    symptoms=("did not stop within",),
    explanation="Ranks get a grace period to save a final checkpoint; those that have not exited by then are killed.",
    fixes="aboard stop {run} --now",
)

LOGS_NOTHING = Diagnosis(
    code="logs-nothing",
    title="that rank or node has no output",
    symptoms=("has printed anything",),
    explanation="The rank or node does not belong to the run, or has not printed anything yet. `aboard logs RUN` shows"
    " which ranks and nodes have output.",
    fixes={
        "ranks": Advice("these ranks have output: {ranks}"),
        "wait": "aboard logs --follow    # waits for new output",
        "nobody": Advice("no node has printed anything"),
        **SUGGESTED,
    },
)

LOGS_GREP = Diagnosis(
    code="logs-grep",
    title="the pattern is not a valid regular expression",
    symptoms=("is not a valid regular expression",),
    explanation="`--grep` takes Python regular expressions, in which ( [ * + ? have a special meaning.",
    fixes="aboard logs --grep {pattern}    # matches it literally",
)

LOGS_LINES = Diagnosis(
    code="logs-lines",
    title="the number of lines is invalid",
    symptoms=("is not a number of lines",),
    explanation="`-n` takes a number, or `all`.",
    fixes=Advice("for example: -n 500, or -n all"),
)

WHY_CODE = Diagnosis(
    code="why-code",
    title="unknown code or run",
    symptoms=("no code and no run",),
    explanation="`aboard why` takes one finding code or one run.",
    fixes={
        "log": "aboard why --log {path}    # explains this file",
        "near": "aboard why {code}    # did you mean this?",
        "list": "aboard why --codes    # lists all codes; aboard status lists all runs",
    },
)

WHY_WORDS = Diagnosis(
    code="why-words",
    title="more than one run or finding code was given",
    symptoms=("runs or codes at once",),
    explanation="`aboard why` takes one finding code or one run. Files go after `--log`.",
    fixes="aboard why {word}    # files go after --log",
)

WHY_OPTIONS = Diagnosis(
    code="why-options",
    title="these options can't be combined",
    symptoms=("cannot be combined",),
    explanation="`aboard why` diagnoses one thing at a time: a run, a log, a bundle, or external processes.",
    fixes="aboard why --nodes NODES…    # or one of the other options",
)

WHY_LOG = Diagnosis(
    code="why-log",
    title="the logs can't be read",
    symptoms=("files were given; the maximum is",),
    explanation="A file is missing or is not text, or there are too many files.",
    fixes={
        "empty": "aboard why --log FILE…",
        "look": "ls -l {path}",
        "fewer": Advice("pass only the failed run's logs"),
    },
)

WHY_PID = Diagnosis(
    code="why-pid",
    title="--pid is not a process id",
    symptoms=("is not a process id",),
    explanation="`--pid` takes process ids as `ps` shows them.",
    fixes="aboard why --pid 4711    # as shown by: ps -u $USER -o pid,etime,args",
)

WHY_NO_PROCESS = Diagnosis(
    code="why-no-process",
    title="the process does not exist",
    symptoms=("there is no process 4711",),
    explanation="The process has exited, or it runs on a different node.",
    fixes="ps -u $USER -o pid,etime,args",
)

WHY_NOT_PERMITTED = Diagnosis(
    code="why-not-permitted",
    title="the process belongs to another user",
    symptoms=("no permission to inspect it",),
    explanation="Only root and the user who started a process can inspect it.",
    fixes="sudo aboard why --pid {pid}",
)

WHY_OWN_RUN = Diagnosis(
    code="why-own-run",
    title="the process belongs to an Aboard run",
    symptoms=("a run that Aboard started",),
    explanation="Aboard knows much more about its own runs than about external processes, so diagnose the run instead.",
    fixes="aboard why {run}",
)

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
