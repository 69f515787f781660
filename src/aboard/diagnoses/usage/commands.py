"""Commands that can't be obeyed as they are typed."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice, FixCommand
from aboard.diagnoses.shared_fixes import SUGGESTED

COMMAND = Diagnosis(
    code="command",
    title="there is no such command",
    symptoms=("there is no command",),
    explanation="Aboard has a dozen verbs.",
    fixes="aboard --help",
)

LAUNCH_COMMAND = Diagnosis(
    code="launch-command",
    title="nothing is to be launched",
    symptoms=("there is no command behind --",),
    explanation="What stands behind `--` is what every rank runs.",
    fixes="{typed:shell aboard launch -- train.py --lr 1e-5}",
)

LAUNCH_DRY = Diagnosis(
    code="launch-dry",
    title="an option that only shows a plan",
    symptoms=("it shows a plan, and this would start one",),
    explanation="`--as` and `--json` are for looking.",
    fixes={
        "as": FixCommand("aboard launch --dry-run --as {launcher} -- …"),
        "json": FixCommand("aboard launch --dry-run --json -- …"),
        "both": Advice("leave --json out"),
    },
)

LAUNCH_ENV = Diagnosis(
    code="launch-env",
    title="a variable can't be given to ranks",
    symptoms=("is not set here",),
    explanation="`--env NAME` takes it from this shell, where it is not set; `--env NAME=value` gives it.",
    fixes={"file": FixCommand("ls -l {file}"), "value": FixCommand("--env {name}=VALUE")},
)

CHECK_SUBJECT = Diagnosis(
    code="check-subject",
    title="there is no such subject of a check",
    symptoms=("no subject",),
    explanation="`--only` and `--skip` name subjects.",
    remedy="`aboard check --help` lists them.",
    fixes=SUGGESTED,
)

CHECK_FIX = Diagnosis(
    code="check-fix",
    title="--fix has nothing to mend",
    symptoms=("--fix ends leftovers",),
    explanation="It ends what earlier runs left on the nodes, which the subject `host` looks for.",
    fixes=Advice("leave --fix out, or let 'host' be asked"),
)

INIT = Diagnosis(
    code="init",
    title="it is not clear which nodes are meant",
    symptoms=("no node is named",),
    explanation="aboard.yaml is written for nodes that are named, or that a hostfile has; one of both.",
    fixes=Advice("type: aboard init gpu[01-16], or: aboard init --hostfile FILE"),
)

INIT_EXISTS = Diagnosis(
    code="init-exists",
    title="there is an aboard.yaml already",
    symptoms=("the file is already there",),
    explanation="It is never overwritten.",
    fixes="keep it, or choose another name: aboard init … -o {other}",
)

INIT_WRITE = Diagnosis(
    code="init-write",
    title="aboard.yaml can't be written here",
    symptoms=("can't be written: Permission denied",),
    explanation="The directory is not yours, or its disk is full.",
    fixes="aboard init … -o FILE",
)

STOP_NONE = Diagnosis(
    code="stop-none",
    title="there is nothing to stop",
    symptoms=("no run of yours is under way from here",),
    explanation="No run of this user on this machine is alive.",
    fixes="aboard status    # lists the runs; stop one where it was started",
)

STOP_WHICH = Diagnosis(
    code="stop-which",
    title="several runs are under way",
    symptoms=("several runs are under way",),
    explanation="Which one is meant is nothing to guess about.",
    fixes="aboard stop {run}",
)

STOP_SLOW = Diagnosis(
    code="stop-slow",
    title="the run is slow to end",
    symptoms=("did not end within",),
    explanation="Ranks get time for a last checkpoint, and those that don't end are killed after it.",
    fixes="aboard stop {run} --now",
)

LOGS_NOTHING = Diagnosis(
    code="logs-nothing",
    title="nobody of that name has printed anything",
    symptoms=("has printed anything",),
    explanation="The rank or node isn't one of the run's, or said nothing yet; `aboard logs RUN` shows who has.",
    fixes={
        "ranks": Advice("name some of those that have: {ranks}"),
        "wait": FixCommand("aboard logs --follow    # waits for what is to come"),
        "nobody": Advice("no node has printed anything"),
        **SUGGESTED,
    },
)

LOGS_GREP = Diagnosis(
    code="logs-grep",
    title="the pattern is no regular expression",
    symptoms=("is no regular expression",),
    explanation="`--grep` takes Python's regular expressions, in which ( [ * + ? mean something.",
    fixes="aboard logs --grep {pattern}    # finds it as it stands",
)

LOGS_LINES = Diagnosis(
    code="logs-lines",
    title="the number of lines is none",
    symptoms=("is no number of lines",),
    explanation="`-n` takes a number, or `all`.",
    fixes=Advice("write it as in: -n 500, or -n all"),
)

WHY_CODE = Diagnosis(
    code="why-code",
    title="there is no such code and no such run",
    symptoms=("no code and no run",),
    explanation="`aboard why` takes one code, or one run.",
    fixes={
        "near": FixCommand("aboard why {code}    # did you mean this?"),
        "list": FixCommand("aboard why --codes    # lists all codes; aboard status lists all runs"),
    },
)

WHY_WORDS = Diagnosis(
    code="why-words",
    title="several things were asked about at once",
    symptoms=("runs or codes at once",),
    explanation="`aboard why` takes one code, or one run; files go behind `--log`.",
    fixes="aboard why {word}    # files go behind --log",
)

WHY_OPTIONS = Diagnosis(
    code="why-options",
    title="options that don't go together",
    symptoms=("each stand alone",),
    explanation="A run, a log, a bundle and processes of others are different questions.",
    fixes={
        "alone": FixCommand("aboard why --nodes NODES…    # or one of the others"),
        "json": FixCommand("aboard why --json --log FILE…"),
    },
)

WHY_LOG = Diagnosis(
    code="why-log",
    title="the logs can't be looked at",
    symptoms=("files are more than",),
    explanation="A file is missing, is no text, or there are too many.",
    fixes={
        "empty": FixCommand("aboard why --log FILE…"),
        "look": FixCommand("ls -l {path}"),
        "fewer": Advice("name those of the run that failed"),
    },
)

WHY_PID = Diagnosis(
    code="why-pid",
    title="a process is named by its number",
    symptoms=("is no process number",),
    explanation="`--pid` takes numbers as `ps` shows them.",
    fixes="aboard why --pid 4711    # as shown by: ps -u $USER -o pid,etime,args",
)

WHY_NO_PROCESS = Diagnosis(
    code="why-no-process",
    title="there is no such process",
    symptoms=("there is no process 4711",),
    explanation="It has ended, or it runs on another node.",
    fixes="ps -u $USER -o pid,etime,args",
)

WHY_NOT_PERMITTED = Diagnosis(
    code="why-not-permitted",
    title="the process is somebody else's",
    symptoms=("may not be looked at",),
    explanation="The kernel shows a process to its own user and to root only.",
    fixes="sudo aboard why --pid {pid}",
)

WHY_OWN_RUN = Diagnosis(
    code="why-own-run",
    title="the process belongs to a run of Aboard's own",
    symptoms=("a run of Aboard's own",),
    explanation="Far more is known of that run than of a process that was started otherwise.",
    fixes="aboard why {run}",
)

WHY_NO_TRAINING = Diagnosis(
    code="why-no-training",
    title="no training was found on these nodes",
    symptoms=("has RANK and WORLD_SIZE",),
    explanation="Ranks are known by the variables that every launcher gives them, among the processes of your user.",
    fixes={
        "ended": FixCommand("aboard why --log FILE…    # what it said at last"),
        "none": FixCommand("aboard why --pid PID    # on its node: for one that was started without them"),
    },
)

WHY_NO_NODE = Diagnosis(
    code="why-no-node",
    title="none of the nodes answers",
    symptoms=("none of the nodes answers",),
    explanation="Whatever runs there can only be looked at through ssh.",
    fixes="aboard check {nodes:words} --only reach",
)
