"""Diagnoses of ranks, nodes and conductors that die or are lost."""

from aboard.diagnoses.diagnosis import Diagnosis, RunFailure, remark, run_remark, run_warning, warning
from aboard.diagnoses.failure_class import Circumstance, FailureClass, RunFix, classify_fixes
from aboard.diagnoses.fixes import Advice, FixTemplates
from aboard.diagnoses.output_patterns import NCCL_COMPLETION, PatternSource, cause, echo, end, last_words

# Added to every fix for a death.
_LOGS = "aboard logs {run} --rank {rank}    # the end of the rank's output"
_XID = {
    "xid": RunFix(
        FailureClass.NODE,
        "sudo dmesg -T | grep -i xid    # on {node}; did a GPU fail? (Aboard has no permission to read the kernel log)",
    )
}
# For the last output of a rank: an exception, a line on stderr, or an error before the program started.
_KNOWN_ERRORS = {
    **classify_fixes(
        Circumstance.BY_EXTENT,
        {
            "install": "{command:shell ssh NODE python -m pip install MODULE}    # here; or install the package that"
            " provides {module}",
            "interpreter": Advice(
                "# to use a different interpreter: aboard launch --set cluster.python=/path/to/env/bin/python …"
            ),
            "image": Advice(
                "# the image lacks {module}: add `pip install {module}` to the definition of {image}, and bring the new"
                " image to the nodes"
            ),
            "file": "ls -l {path}    # on {nodes:shell}; does the file exist?",
            "copy": "scp -3 {peer}:{path} {node}:{path}    # here; if {peer} has the file; then launch again",
            "copy-to-all": 'for node in {nodes:words}; do scp -3 {peer}:{path} "$node":{path}; done'
            "    # here; if {peer} has the file; then launch again",
        },
    ),
    **classify_fixes(
        FailureClass.TRANSIENT,
        {
            "port": "sudo ss -ltnp {sockets}    # on {nodes:shell}; which process uses the port?"
            " or keep the MASTER_PORT that Aboard sets",
            "some-port": "sudo ss -ltnp    # on {nodes:shell}; which process uses the port?",
        },
    ),
    "disk": RunFix(Circumstance.BY_DISK, "df -h    # on {nodes:shell}; find the full disk and free space on it"),
}
_PROGRAM_ERRORS: FixTemplates = {
    "interface": "ip -br address    # on {nodes:shell}; set GLOO_SOCKET_IFNAME to the interface that peers can reach",
    "open-files": "ulimit -n    # on {nodes:shell}; set `setup: [ulimit -n 65536]` in aboard.yaml,"
    " unless the script lowers the limit",
    "script": "ls -l {path}    # on {nodes:shell}; set `workdir:` in aboard.yaml, or copy the script to this path",
    "gpu-memory": "nvidia-smi    # on {nodes:shell}; does another process use the GPU? if not, use a smaller batch,"
    " activation checkpointing, or shard the model (FSDP, ZeRO)",
}
_DIFFERS = "aboard check --only software    # what differs between nodes"
PORT_TAKEN = last_words(
    r"(?i)EADDRINUSE|address already in use", "Another process is using the rendezvous port.", fix="some-port"
)

RAISED = RunFailure(
    code="run-raised",
    restart=FailureClass.PROGRAM,
    title="a rank raised an exception",
    symptoms=("torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "exitcode  : 1 (pid: "),
    explanation="The rank's own code raised an exception that nothing caught. After correcting for clock"
    " differences between nodes, this is the earliest failure; connection errors on other ranks came later.",
    remedy="Read the exception, and the full traceback with `aboard logs RUN --rank N`. If all ranks raised it, check"
    " what they share: script, arguments, data. `aboard launch --trial -- …` finds a node that fails on its own.",
    classified_fixes={
        **_KNOWN_ERRORS,
        **classify_fixes(FailureClass.PROGRAM, _PROGRAM_ERRORS),
        **_XID,
        "logs": RunFix(FailureClass.PROGRAM, _LOGS),
        "trial": RunFix(
            FailureClass.PROGRAM,
            "aboard launch --trial -- SCRIPT    # runs the script on each node alone, and shows which nodes fail",
        ),
    },
    patterns=(
        last_words(
            r"ModuleNotFoundError: No module named '(?P<module>[^']+)'",
            "If the module is your own, its directory must be on PYTHONPATH.",
            fix="install",
        ),
        last_words(
            r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>/[^']+)'",
            "The code tried to open a file that does not exist.",
            fix="file",
        ),
        last_words(
            r"Unable to find address for: [\w.-]+",
            "GLOO_SOCKET_IFNAME is set to a network interface that does not exist.",
            fix="interface",
        ),
        last_words(r"Too many open files", "The process has reached its limit on open files.", fix="open-files"),
        last_words(r"can't open file '?(?P<path>[^':]+)", "The script does not exist at this path.", fix="script"),
        last_words(
            r"CUDA out of memory|OutOfMemoryError",
            "The rank needs more memory than the GPU has free.",
            fix="gpu-memory",
        ),
        last_words(
            r"port: (?P<port>\d+)\b.{0,200}(?:EADDRINUSE|[Aa]ddress already in use)", PORT_TAKEN.why, fix="port"
        ),
        PORT_TAKEN,
        last_words(r"No space left on device", "The rank could not write because a disk is full.", fix="disk"),
    ),
)

EXITED = RunFailure(
    code="run-exited",
    restart=FailureClass.UNKNOWN,
    title="a rank exited with a non-zero code",
    symptoms=("exitcode  : 1", "exits with return code = 1"),
    explanation="The process exited by itself with a non-zero code and without an exception. Usual causes are"
    " a call to sys.exit, an argument error, or an error in a program that is not written in Python.",
    remedy="Find what exits with this code: `aboard logs RUN --rank N -n all` shows the rank's whole output.",
    classified_fixes={
        **_KNOWN_ERRORS,
        **classify_fixes(FailureClass.PROGRAM, _PROGRAM_ERRORS),
        **_XID,
        **classify_fixes(
            FailureClass.UNKNOWN,
            {
                "logs": _LOGS,
                "nccl": "export NCCL_DEBUG=INFO    # then restart the run, and: aboard why --log LOG",
                "said": "grep -F {node}': ' LOG | tail -50    # the node's last output",
                "slurm": "sacct -j JOBID --format=JobID,State,ExitCode,End,NodeList    # which task ended first",
                "output": "aboard why --log LOGS…    # add the failed rank's output, because this log does not"
                " contain it",
            },
        ),
    },
    patterns=(
        end(
            r"DistBackendError: NCCL error in: ",
            "torch reports an NCCL error. With NCCL_DEBUG=INFO, NCCL logs the cause.",
            fix="nccl",
            precedence=600,
        ),
        end(
            r"pdsh@\S+: (?P<node>[\w.-]+): ssh exited with exit code (?P<code>\d+)",
            "The command on {node} exited with code {code}. pdsh reports the code, but not the reason.",
            fix="said",
            precedence=600,
        ),
        end(
            r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: Exited with exit code (?P<code>\d+)",
            "Slurm reports how the task ended, but not why.",
            fix="slurm",
        ),
        end(
            r"failed \(exitcode: (?P<code>\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"
            r"|exits with return code = (?P<code2>\d+)|exitcode +: (?P<code3>[1-9]\d*) "
            r"|CalledProcessError: Command .{0,8000} returned non-zero exit status (?P<code4>\d+)|ChildFailedError",
            "The launcher reports that a rank ended, but not why.",
            fix="output",
        ),
    ),
)

KILLED = RunFailure(
    code="run-killed",
    restart=FailureClass.UNKNOWN,
    title="a rank was killed by a signal",
    symptoms=("Signal 9 (SIGKILL) received by PID", "exits with return code = -9", "Bus error (core dumped)"),
    explanation="SIGKILL comes from the kernel (out of memory), from Slurm, or from a user. SIGBUS usually means that"
    " /dev/shm is full. SIGSEGV and SIGABRT usually mean a bug in native code, or incompatible libraries.",
    classified_fixes={
        "memory": RunFix(
            FailureClass.TRANSIENT,
            "sudo dmesg -T | grep -i 'killed process'    # on {node}; out of memory? if not, launch again",
        ),
        **_XID,
        **classify_fixes(
            FailureClass.UNKNOWN,
            {
                "shm": "df -h /dev/shm    # on {node}; is it full?",
                "software": _DIFFERS,
                "logs": _LOGS,
                "slurm": "sudo dmesg -T | tail -50    # on {node}; out of memory?",
                "native": "export PYTHONFAULTHANDLER=1    # then restart the run: Python prints the lines where the"
                f" rank died\n{_DIFFERS}",
            },
        ),
    },
    patterns=(
        end(
            r"noticed that process rank (?P<rank>\d+) .{0,40}on node (?P<node>[\w.-]+) exited on"
            r" signal (?P<signal>\d+)",
            "mpirun reports how the rank ended, but not why.",
            fix="slurm",
            weight=2,
        ),
        end(
            r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: (?P<signal>Killed|Segmentation fault"
            r"|Aborted|Illegal instruction|Terminated)",
            "Slurm reports how the task ended, but not why.",
            fix="slurm",
        ),
        end(
            r"failed \(exitcode: -9\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"
            r"|Signal 9 \(SIGKILL\) received by PID (?P<pid2>\d+)|exits with return code = -9"
            r"|died with <Signals\.SIGKILL",
            fix="memory",
            weight=2,
        ),
        end(
            r"failed \(exitcode: -(?P<signal>\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"
            r"|Signal (?P<signal2>\d+) \((?P<name>SIG\w+)\) received by PID (?P<pid2>\d+)"
            r"|exits with return code = -(?P<signal3>\d+)|Segmentation fault(?! \w)|Fatal Python error: (?P<error>\w+)"
            r"|died with <Signals\.(?P<name2>SIG\w+)",
            fix="native",
            weight=2,
            precedence=600,
        ),
    ),
)

NOT_STARTED = RunFailure(
    code="run-not-started",
    restart=Circumstance.BY_EXTENT,
    title="a node could not start a rank",
    symptoms=("No such file or directory", "Permission denied"),
    explanation="The working directory or the program is missing on this node, or this user has no permission to use"
    " it.",
    remedy="Ranks start in the `workdir:` from aboard.yaml, or else in the directory where `aboard launch` was run."
    " This directory must exist on every node.",
    classified_fixes={
        **_KNOWN_ERRORS,
        **_XID,
        **classify_fixes(
            Circumstance.BY_EXTENT,
            {
                "folder": "mkdir -p {path}    # on {node}; or set `workdir:` in aboard.yaml",
                "mode": "chmod +x {program}    # on {node}; then launch again",
                "program": "command -v {program}    # on {node}",
                **_PROGRAM_ERRORS,
                "logs": _LOGS,
            },
        ),
    },
    patterns=(
        last_words(r"\Acan't enter (?P<path>\S+):", fix="folder"),
        last_words(r"\Acan't start (?P<program>\S*/\S*): Permission denied", fix="mode"),
        cause(
            r"slurmstepd: error: execve\(\): (?P<program>\S+): Permission denied",
            "The program is not executable, or its file system is mounted with noexec.",
            fix="mode",
        ),
        last_words(r"\Acan't start (?P<program>\S+):", fix="program"),
    ),
)

NODE_GONE = RunFailure(
    code="run-node-gone",
    restart=FailureClass.NODE,
    title="a node was lost",
    symptoms=("Connection closed by remote host", "client_loop: send disconnect: Broken pipe"),
    explanation="The node lost power or its network, or its agent was killed."
    " A training run continues on fewer nodes only with `min_nodes`; a script never does.",
    fixes={
        "": "{check:shell aboard check NODE    # is it back? then launch again}",
        "job": "sinfo -R --nodes={node}    # why is it down? then submit again, if need be with --exclude={node}",
    },
    log_fix="scontrol show node {node} | grep -E 'State|Reason'    # shows why the node failed\n"
    "#SBATCH --exclude={node}    # run without this node",
    patterns=cause(
        r"DUE TO NODE FAILURE|Node failure on (?P<node>[\w.,\[\]-]+)"
        r"|[Nn]odes? (?P<node2>[\w.-]+) (?:is )?not responding|NODE_FAIL",
        "Slurm lost contact with a node. The node may have lost power or its network, or its kernel may have crashed.",
    ),
)

CONDUCTOR_LOST = RunFailure(
    code="run-conductor-lost",
    restart=FailureClass.OUTSIDE,
    title="the conductor of a run was killed",
    symptoms=("lost", "Killed", "Out of memory: Killed process 4711 (aboard)"),
    explanation="A user or the kernel (out of memory) killed the conductor (the process on the head that controls the"
    " run), or the head was rebooted. Without the conductor, the agents on the nodes terminate their ranks when the"
    " lease (`--lease`) expires."
    " With `--detach`, the conductor keeps running when its terminal is closed.",
    fixes={
        "again": "{command:shell aboard launch …}    # runs it again",
        "continue": "{command:shell aboard train …}    # continues from step {step}",
        "continue-if-any": "{command:shell aboard train …}    # continues from the last checkpoint, if any",
        "logs": "aboard logs {run}    # the ranks' output until the conductor was killed",
        "memory": "sudo dmesg -T | grep -i 'killed process'    # here; did the kernel kill the conductor to free"
        " memory?",
    },
)

AGENT_KILLED = RunFailure(
    code="run-agent-killed",
    restart=FailureClass.NODE,
    title="a process of Aboard on a node was killed",
    symptoms=("the supervisor on n1 is no longer running", "the supervisor's guard process was killed"),
    explanation="A user, a rank or the kernel (out of memory) killed the supervisor, which starts and stops the ranks"
    " of a node, or its guard process, which cleans up after it. If one of these two or the agent that the head is"
    " connected to is killed, the others kill the ranks, so that no process is left behind.",
    fixes={
        "memory": "sudo dmesg -T | grep -i 'killed process'    # on {node}; did the kernel kill it to free memory?",
        "check": "{check:shell aboard check NODE --only host    # is anything left of the run? if not, launch again}",
    },
)

LEASE_EXPIRED = RunFailure(
    code="run-lease-expired",
    restart=FailureClass.TRANSIENT,
    title="a node lost contact with the head for longer than the lease",
    symptoms=("the lease of 20 s expired",),
    explanation="Without a message from the head for the whole lease (`--lease`), a node kills its ranks: nobody could"
    " stop them any more. The network between the head and the node was down, or the head was overloaded.",
    fixes="{check:shell aboard check NODE --only network    # then launch again, with a longer --lease if needed}",
)

HEAD_PAUSED = RunFailure(
    code="run-head-paused",
    restart=FailureClass.OUTSIDE,
    title="the conductor was stopped, or its machine was suspended",
    symptoms=("[1]+  Stopped                 aboard launch", "State:\tT (stopped)"),
    explanation="The conductor (the process on the head that controls the run) did not run for a while: SIGSTOP or"
    " Ctrl-Z stopped it, the machine was suspended, or a write to its disk did not return. A node that hears nothing"
    " for longer than the lease (`--lease`) kills its ranks.",
    fixes="aboard launch --detach …    # the conductor then has no terminal whose Ctrl-Z could stop it,"
    " and a lease of 10 min",
)

AGENT_DISTURBED = run_remark(
    code="run-agent-disturbed",
    restart=FailureClass.UNKNOWN,
    title="a process of Aboard on a node was stopped or killed, and the run continued",
    symptoms=("State:\tT (stopped)",),
    explanation="A signal stopped the supervisor, its guard process or the agent's connection to the head, and another"
    " process of Aboard continued it; or the connection was killed, and the head connected again. The ranks did not"
    " notice.",
    fixes="sudo dmesg -T | grep -i 'killed process'    # on {node}; did the kernel kill it, or a program?",
)

RANK_STOPPED = RunFailure(
    code="run-rank-stopped",
    restart=FailureClass.OUTSIDE,
    title="a rank was stopped by a signal",
    symptoms=("State:\tT (stopped)",),
    explanation="A user sent SIGSTOP to the rank or pressed Ctrl-Z. All other ranks wait for this rank in the next"
    " collective.",
    fixes={
        "continue": "kill -CONT {pids:words}    # on {node}; resumes the rank",
        "check": "{check:shell aboard check NODE --only host    # are any of its processes left? if not, launch again}",
    },
)

# Messages of ranks that lost a peer. These may quote another rank's failure.
_QUOTING = (
    r"Failed to recv, got 0 bytes|recvValue(?:WithTimeout)? failed|sendBytes failed|Broken pipe",
    r"failed to send a keep-alive heartbeat to the rendezvous|RendezvousClosedError|RendezvousGracefulExit",
    r"failed to shutdown the rendezvous|Failed to check the \"should dump\" flag on TCPStore",
    r"store->get\('[^']*'\) got error: (?:Connection reset|Broken pipe|Connection was|Failed to recv)",
    r"DistNetworkError: (?:Connection reset|Connection was|Broken pipe|Failed to recv|failed to recv)",
    r"taking the entire process down|NCCL watchdog thread terminated with exception|some rank has detected a timeout",
    r"Observed flight recorder dump signal from another rank|Received a dump signal (?:due to|from)",
    r"Some NCCL operations have failed or timed out\. Due to the asynchronous",
    r"(?:Exception \(either an error or timeout\)|failure) detected by watchdog at work",
    r"Timeout at NCCL work: \d+|preparing to dump debug info|Terminating the process after attempting to dump",
    NCCL_COMPLETION + r"5\b",
    r"socketProgress(?:Opt)?: Connection closed by remote peer|Net ?: Connection closed by remote peer",
    r"Call to (?:recv|send|recvfrom)(?: from| to)? \S+ failed ?: (?:Connection reset|Broken pipe|Connection timed)",
    r"proxy\.cc:\d+ NCCL WARN|Proxy Call to rank \d+ failed|Failed to execute operation \w+ from rank",
    r"Socket recv failed while polling|Accept failed Software caused",
)
_LOST_PEER = (
    r"ncclRemoteError|remote process exited or there was a network error",
    r"ncclCommAbort|NCCL communicator was aborted|Abort COMPLETE",
    r"(?:Read|Write|Send|Recv) error \[[^\]]*\]:\d+: Connection (?:reset|closed)",
    r"Connection (?:closed|reset) by (?:remote )?peer(?! ?\(errno)",
    r"Application timeout caused pair closure|monitoredBarrier, but received errors|Socket closed",
    r"srun: (?:Job step aborted|Terminating (?:StepId|job step)|Force Terminated|error: .*: task \d+: Terminated)",
    r"slurmstepd: error: \*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+ DUE TO SIGNAL",
    r"Sending process \d+ closing signal|Unable to shutdown process|Killing subprocess \d+",
)
FOLLOWED = remark(
    code="run-followed",
    title="ranks died because another rank had died",
    symptoms=("Connection closed by peer", "Connection reset by peer", "NCCL WARN Net : Connection closed by remote"),
    explanation="When a rank dies, its peers lose their connections to it. Their errors are consequences, not the"
    " cause.",
    remedy="No fix is needed here: see the finding above this one.",
    patterns=(
        *(echo(each, precedence=400) for each in _QUOTING),
        *map(echo, _LOST_PEER),
        echo(
            r"(?i)connection (was )?(closed|reset|refused|aborted)|closed by (remote )?peer|broken pipe"
            r"|socket closed|remote process (has )?exited|connectFullMesh failed|recvValue|sendBytes failed"
            r"|failed to recv|client socket has (failed|timed out)|DistNetworkError|NCCL.*remote error"
            r"|unhandled system error|watchdog (caught|got)|heartbeat|timed out waiting|connect timeout|wait timeout"
            r"|monitoredBarrier",
            source=PatternSource.DEATH,
        ),
    ),
)

STUBBORN = run_warning(
    code="run-stubborn",
    restart=FailureClass.UNKNOWN,
    title="processes survived SIGKILL",
    symptoms=("State:\tD (disk sleep)",),
    explanation="The processes are blocked in the kernel by a dead mount or device, so no signal reaches them.",
    fixes="aboard check --fix {nodes:words}    # works once the mount or device responds; else reboot the node",
    log_fix="ps -eo pid,stat,wchan:30,args | awk '$2 ~ /D/'    # on {node}: those that wait in the kernel, and where",
    patterns=cause(
        r"(?:STEPD TERMINATED ON (?P<node>[\w.-]+) AT \S+ )?DUE TO JOB NOT ENDING WITH SIGNALS"
        r"|Processes? .{0,40}?did not (?:exit|terminate) after SIGKILL|Kill task failed",
        "Slurm killed the job, and its processes did not end: they wait in the kernel for a dead mount or device. Slurm"
        " drains such a node.",
    ),
)

NODE_FLOOD = warning(
    code="run-node-flood",
    title="a node sent more events or measurements than a run keeps",
    symptoms=("sent more events than a run keeps",),
    explanation="The record has a limit for each node, so that none can fill this machine's disk, and no healthy node"
    " comes near it. The run goes on, but its record lacks what this node sent past the limit.",
    fixes="aboard check {nodes:words}    # is anything wrong with it? if not, ask who else has access to the node",
)

DAMAGED_REPORTS = remark(
    code="run-reports-damaged",
    title="some reports of ranks could not be read",
    symptoms=("reports of ranks that could not be read: 3 on n1",),
    explanation="Each rank reports its progress to the agent on its node. The agent ignored some invalid reports, so"
    " what Aboard says about these ranks may be incomplete. Your program may be writing to the agent's socket.",
    fixes="aboard bundle {run}    # for a bug report, unless your program writes to that socket",
)

TRIAL = Diagnosis(
    code="run-trial",
    title="the command fails on a node, on a pair of nodes or on all nodes",
    symptoms=("can't run the command by itself", "can't run the command as a pair, although each can alone"),
    explanation="The command ran for a few seconds on each node alone, then on pairs, then on all nodes. If it fails"
    " on a node alone, that node is at fault; if it fails only on a pair, the link between the two nodes is.",
    fixes="aboard check    # if one node fails: --only software; if a pair fails: --only network, --only collective",
)

STUCK = Diagnosis(
    code="run-stuck",
    title="ranks made no progress in a trial",
    symptoms=("Waiting for clients", "it just hangs at init_process_group"),
    explanation="The ranks did not reach their first collective within the trial's time limit.",
    fixes="aboard check --only network {nodes}",
)

NESTED = RunFailure(
    code="run-nested-launcher",
    restart=FailureClass.PROGRAM,
    title="a rank started a launcher",
    symptoms=("every node trained a model of its own", "world size is 2 instead of 4"),
    explanation="The script or program of a rank started torchrun, accelerate or deepspeed, which starts ranks of its"
    " own. Each rank would then begin a separate run, with a smaller world size. Aboard starts the ranks itself, and"
    " reads the commands of these launchers.",
    fixes={
        # A comment: the words come from a node, and a paste must not run them unread.
        "paste": Advice("# let Aboard start this launcher's ranks on all nodes: aboard launch -- {command:shell}"),
        "launch": Advice("# or start the training script itself: aboard launch -- train.py …"),
    },
)

NODE_SILENT = run_warning(
    code="run-node-silent",
    restart=FailureClass.UNKNOWN,
    title="a node has stopped responding",
    symptoms=("no beat came over the wire",),
    explanation="The node lost power, its network or its ssh connection. Its ranks may still be running. The run"
    " continues if the node comes back within the lease (`--lease SECONDS`), and is terminated otherwise.",
    fixes="{check:shell aboard check NODE    # does it respond? if not: check its power, or its console}",
)

OUT_OF_MEMORY = RunFailure(
    code="run-out-of-memory",
    restart=Circumstance.BY_MEMORY,
    title="the kernel killed a rank: out of memory",
    symptoms=("Signal 9 (SIGKILL) received by PID", "exitcode  : -9", "Out of memory: Killed process"),
    explanation="The kernel killed a process because the node, or the process's cgroup, ran out of memory.",
    classified_fixes={
        "killed": RunFix(
            Circumstance.BY_MEMORY,
            "sudo dmesg -T | grep -i 'killed process'    # on {node}; shows which process, and its size\n"
            "# use fewer data workers or a smaller batch, or request more memory (Slurm: --mem)",
        ),
        "logs": RunFix(Circumstance.BY_MEMORY, _LOGS),
        **_XID,
    },
    # How Python and torch report it for a child process of the rank.
    patterns=last_words(r"died with <Signals\.SIGKILL|killed by signal: Killed|exit(ed|code)[^.]{0,40}-9\b"),
)

SHM_FULL = RunFailure(
    code="run-shm-full",
    restart=Circumstance.BY_EXTENT,
    title="shared memory is full",
    symptoms=("Bus error (core dumped)", "Error: failed to extend /dev/shm/nccl-"),
    explanation="Data loaders and NCCL share memory through /dev/shm, and it is full. Containers get 64 MiB by"
    " default.",
    classified_fixes={
        "remount": RunFix(
            Circumstance.BY_EXTENT,
            "sudo mount -o remount,size=50% /dev/shm    # on {node}; in a container: --shm-size=8g or --ipc=host",
        ),
        "logs": RunFix(Circumstance.BY_EXTENT, _LOGS),
        **_XID,
    },
)

DISK_FULL = RunFailure(
    code="run-disk-full",
    restart=Circumstance.BY_DISK,
    title="a disk is full",
    symptoms=("OSError: [Errno 28] No space left on device",),
    explanation="The rank could not write because its disk is full. The other ranks then wait for this rank.",
    classified_fixes={
        "sizes": RunFix(
            Circumstance.BY_DISK,
            "du -x --max-depth=2 {path} 2>/dev/null | sort -n | tail    # on {node};"
            " free space, keep fewer checkpoints, or write elsewhere",
        ),
        "logs": RunFix(Circumstance.BY_DISK, _LOGS),
        **_XID,
    },
    patterns=last_words(r"No space left on device|Errno 28|Disk quota exceeded|Errno 122"),
)
