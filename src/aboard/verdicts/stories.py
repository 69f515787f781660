"""The story of each code that a run's end can have."""

from aboard.diagnoses import Diagnosis, Severity

STORIES = (
    Diagnosis(
        code="run-raised",
        title="a rank raised an exception",
        severity=Severity.BLOCK,
        symptoms=("torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "exitcode  : 1 (pid: "),
        explanation="A rank's own code raised, and the exception was caught by nobody. It is the earliest death of all"
        " nodes on the corrected clock; what other ranks say of closed connections came after it.",
        remedy="If several ranks raised the same exception, all of them are named, and the cause is what they share:"
        " the script, its arguments, its data, its Python. The fix installs a missing module into the interpreter of"
        " the ranks, or copies a missing file. Else read the exception, and the whole traceback with"
        " `aboard logs RUN --rank N`. `aboard launch --trial -- …` runs the same command on each node alone and names"
        " the node that can't.",
    ),
    Diagnosis(
        code="run-exited",
        title="a rank ended with an exit code",
        severity=Severity.BLOCK,
        symptoms=("exitcode  : 1", "exits with return code = 1"),
        explanation="The process ended by itself with a code other than 0 and left no exception: sys.exit, a usage"
        " error of its arguments, a program that isn't Python.",
        remedy="If its last line on stderr is a known error, the fix is for that one. Otherwise its last lines are"
        " shown as evidence, not as the cause: find what exits with this code. All output is in"
        " `aboard logs RUN --rank N`.",
    ),
    Diagnosis(
        code="run-killed",
        title="a rank was killed by a signal",
        severity=Severity.BLOCK,
        symptoms=("Signal 9 (SIGKILL) received by PID", "exits with return code = -9", "Bus error (core dumped)"),
        explanation="SIGKILL is mostly the kernel out of memory, SIGBUS a full /dev/shm, SIGSEGV and SIGABRT bugs in"
        " native code or libraries that don't fit each other.",
        remedy="`sudo dmesg -T | tail` on the node tells an out-of-memory kill. `aboard check --only host` shows"
        " memory, limits and /dev/shm; `aboard check --only software` what differs between nodes.",
    ),
    Diagnosis(
        code="run-not-started",
        title="a node could not start a rank",
        severity=Severity.BLOCK,
        symptoms=("No such file or directory", "Permission denied"),
        explanation="The working directory or the program is not on this node, or may not be entered or run.",
        remedy="Ranks start in `workdir:` of aboard.yaml, else in the directory in which `aboard launch` was typed: it"
        " must be there on every node. `aboard check` compares what is in it.",
    ),
    Diagnosis(
        code="run-node-gone",
        title="a node was lost",
        severity=Severity.BLOCK,
        symptoms=("Connection closed by remote host", "client_loop: send disconnect: Broken pipe"),
        explanation="Nothing was heard of the node for a whole lease, or its agent was killed: power, kernel, network."
        " A run never goes on with fewer nodes than asked for.",
        remedy="`aboard check NODE` tells whether it is back, and why not. A management network that is cut for less"
        " than the lease does no harm: the run goes on.",
    ),
    Diagnosis(
        code="run-conductor-lost",
        title="the conductor of a run was killed",
        severity=Severity.BLOCK,
        symptoms=("lost", "Killed", "Out of memory: Killed process 4711 (aboard)"),
        explanation="The process that conducts the run, `aboard launch`, `aboard train` or its background process,"
        " died without ending the run: SIGKILL, the kernel out of memory, or a head that was restarted. The agents on"
        " the nodes terminate their ranks after the lease, since nobody would see them to their end.",
        remedy="Type the command of the fix: it is the one that started the run. `aboard train` continues from its last"
        " complete checkpoint. `--detach` keeps a conductor alive when its terminal is closed; `--lease` says how long"
        " ranks live without it.",
    ),
    Diagnosis(
        code="run-rank-stopped",
        title="a rank was stopped by a signal",
        severity=Severity.BLOCK,
        symptoms=("State:\tT (stopped)",),
        explanation="Somebody sent SIGSTOP (or pressed Ctrl-Z); the process lives and does nothing, and all wait for"
        " it.",
        remedy="`kill -CONT PID` lets it go on, as long as the run has not been ended for it; else launch again. A"
        " debugger that is attached shows as another state and is left alone.",
    ),
    Diagnosis(
        code="run-followed",
        title="ranks that died because another one had",
        severity=Severity.INFO,
        symptoms=(
            "Connection closed by peer",
            "Connection reset by peer",
            "NCCL WARN Net : Connection closed by remote",
        ),
        explanation="When one rank dies, its peers' connections to it break. They are not the cause.",
        remedy="Nothing is to be mended here: look at the finding that stands above it.",
    ),
    Diagnosis(
        code="run-stubborn",
        title="processes that would not die",
        severity=Severity.WARN,
        symptoms=("State:\tD (disk sleep)",),
        explanation="A process that waits in the kernel for a dead mount or a dead device can't be killed until that"
        " answers.",
        remedy="Bring the mount or the device back, or restart the node. `aboard check --fix` ends what is left, by run"
        " id.",
    ),
    Diagnosis(
        code="run-trial",
        title="a node, a pair or all of them can't run the command",
        severity=Severity.BLOCK,
        symptoms=("can't run it by itself", "can't run it as a pair, though each can alone"),
        explanation="`aboard launch --trial` runs the command for some seconds on each node alone, then on pairs, then"
        " on all, and stops at the first stage that fails: what fails alone is the node's own, what fails in pairs"
        " only is between the two.",
        remedy="Alone: read the finding below it, and compare the node with the others by `aboard check --only"
        " software`. In pairs: `aboard check --only network` and `--only collective` for the link between them.",
    ),
    Diagnosis(
        code="run-stuck",
        title="ranks came no further",
        severity=Severity.BLOCK,
        symptoms=("Waiting for clients", "it just hangs at init_process_group"),
        explanation="No rank has come to a new phase for the time of a trial. Who is behind is named; the others wait.",
        remedy="`aboard check --only network` for the nodes that are behind; `aboard logs RUN --rank N` for what they"
        " said last.",
    ),
)
