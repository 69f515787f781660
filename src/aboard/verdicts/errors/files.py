"""The stories of files that can't be obeyed as they are."""

from aboard.core.rule import Subject
from aboard.verdicts.errors.row import stories

_ROWS = (
    (
        "config",
        "aboard.yaml says something that can't be",
        "unknown key 'slot' in cluster",
        (
            "Every value is looked at before anything starts, and all mistakes are told at once, each at line and"
            " column. Nothing that is written is ignored."
        ),
        "Write what stands behind each `fix`. `aboard init --schema` describes every key, for editors too.",
    ),
    (
        "config-set",
        "--set can't be used as it is",
        "can't read 'cluster.slots'",
        (
            "`--set` gives one key of the file another value for once: the names of the sections with dots between,"
            " then `=`."
        ),
        (
            "`--set train.learning_rate=2e-5`. A key below a value that is written in the file as a whole has to be"
            " changed there."
        ),
    ),
    (
        "config-twice",
        "two files say the same",
        "cluster.user is also given at a.yaml:2:9",
        "Several files make one document. Which of two values would win is nothing to guess about.",
        "Keep one of the two; for once, `--set` wins over all files.",
    ),
    (
        "yaml",
        "the file is no YAML that can be read",
        "found character '\\t' that cannot start any token",
        (
            "YAML has rules about blanks, quotes and colons; the place is where reading stopped, and the slip may"
            " stand a line above."
        ),
        "Indent with blanks, not tabs; put quotes around values with `: `, `#`, `{` or `[`.",
    ),
    (
        "file",
        "a file can't be read",
        "there is no such file",
        "It is not there, is a directory, is no text, or may not be read.",
        "`ls -l FILE`, and name the right one.",
    ),
    (
        "hostfile",
        "the hostfile can't be read",
        "the hostfile names no host",
        "A line is `HOST slots=N`, as DeepSpeed and MPI have it.",
        "Write one line for each host: `worker-0 slots=8`.",
    ),
    (
        "envfile",
        "the file of variables can't be read",
        "is no NAME=value",
        "A line of .deepspeed_env is `NAME=value`.",
        "Mend the line that is named, or leave it out.",
    ),
    (
        "nodeset",
        "a set of nodes can't be read",
        "gpu[01-",
        "`gpu[01-16]`, `gpu01,gpu02`, `gpu[1-4,7]`, as Slurm and ClusterShell write them; zeros in front count.",
        "Put quotes around it in a shell: `aboard check 'gpu[01-16]'`.",
    ),
    (
        "node-twice",
        "a node is named twice",
        "gpu03 is named twice",
        "It would get twice its ranks, on the same GPUs.",
        "Name it once. One machine under two names is one node.",
    ),
    (
        "cluster-twice",
        "the nodes are given in two ways",
        "the nodes are given twice, by aboard.yaml and by --hostfile",
        "Which of them is meant is nothing to guess about.",
        "Keep one; to use a part of the nodes: `--include NODES`.",
    ),
    (
        "head-twice",
        "this machine is named twice",
        "localhost",
        "Under `localhost` and its own name it would be two nodes.",
        "Name it once, by the name that other nodes reach it by.",
    ),
    (
        "head-address",
        "other nodes have no way to this machine",
        "MASTER_ADDR=127.0.0.1",
        "It is a node of the run, and has no address that the others could reach.",
        "Give it one: `fabric_address` in aboard.yaml. `ip addr` lists what it has.",
    ),
    (
        "filter",
        "--include or --exclude can't be used as it is",
        "--include and --exclude can't be used together",
        "They name nodes of the cluster, and slots of them: `worker-0@worker-1:0,2`, as DeepSpeed has it.",
        "Name only what to use: `--include NODES`.",
    ),
)

FILES = Subject(
    name="files",
    title="aboard.yaml and other files can be obeyed",
    probes=(),
    rules=(),
    stories=stories(_ROWS),
    asked="aboard",
)
