"""Nodes of a Slurm job on which srun can't start an agent."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.output_patterns import cause, end

_SHOW_NODE = "scontrol show node {node} | grep -E 'State|Reason'    # here; what Slurm knows about the node\n"
_RESUME = "sudo scontrol update nodename={node} state=resume    # here, once the cause is fixed"
_STARTED = r"Task launch for (?:StepId=)?(?P<step>[\w.+-]+) failed on node (?P<node>[\w.-]+): "

NO_SRUN = Diagnosis(
    code="reach-no-srun",
    title="the srun program is missing on this machine",
    symptoms=("srun: command not found",),
    explanation="Inside a Slurm job, Aboard starts its agents with srun. A container often has no Slurm client.",
    fixes="sudo apt-get install slurm-client    # Red Hat: slurm; in a container, start aboard outside of it instead",
    log_fix="sudo apt-get install slurm-client    # on {node}; Red Hat: slurm; or run it outside the container",
    patterns=cause(r"(?:srun|sbatch|salloc|scontrol): (?:command )?not found"),
)

NO_SLURMCTLD = Diagnosis(
    code="reach-no-slurmctld",
    title="Slurm's controller does not respond",
    symptoms=(
        "Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "srun: fatal: Could not establish a configuration source",
    ),
    explanation="Every step and every job starts with a request to slurmctld. Either slurmctld is down or overloaded,"
    " or this machine has no slurm.conf that names it. Steps that are already running continue.",
    fixes="scontrol ping    # here; shows which controller is down\n"
    "sudo systemctl restart slurmctld    # on the controller",
    patterns=cause(
        r"Unable to contact slurm controller \([\w ]+\)|Could not establish a configuration source"
        r"|Unable to (?:confirm allocation|create step) for job \d+: Socket timed out"
        r"|(?:job submission failed|Unable to allocate resources|slurm_load_\w+(?: error)?): Socket timed out"
    ),
)

MUNGE = Diagnosis(
    code="reach-munge",
    title="munge does not work on this machine",
    symptoms=(
        'Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory',
        "slurm_load_partitions: Protocol authentication error",
    ),
    explanation="Slurm's commands sign each request with munge. Without a running munged, or with a key that differs"
    " from the controller's, Slurm rejects all of them.",
    fixes="munge -n | unmunge    # here; must print `Success`\n"
    "sudo systemctl restart munge    # here; if it does not. /etc/munge/munge.key must be the same on all machines",
    log_fix="sudo systemctl restart munge    # on {node}; /etc/munge/munge.key must be the same on all machines",
    patterns=cause(
        r"Munge (?:encode|decode) failed: (?!Expired|Rewound)|Protocol authentication error|Invalid authentication"
        r" credential"
    ),
)

JOB_ENDED = Diagnosis(
    code="reach-job-ended",
    title="the Slurm job is over",
    symptoms=(
        "srun: error: Slurm job 7 has expired",
        "srun: error: Unable to confirm allocation for job 99: Invalid job id specified",
        "srun: error: Unable to create step for job 7: Job/step already completing or completed",
    ),
    explanation="Slurm starts no steps in a job that has ended or is ending: it was cancelled, reached its time limit,"
    " or lost its nodes.",
    fixes="squeue --me    # here; the jobs that you have\n"
    "sacct -X --format=JobID,State,ExitCode,End,NodeList    # here; how earlier jobs of today ended",
    patterns=end(
        r"Slurm job (?P<job>\d+) has expired|Unable to (?:confirm allocation|create step) for job (?P<job2>\d+):"
        r" (?:Invalid job id specified|Job/step already completing or completed|Job credential revoked)"
        r"|Job allocation (?P<job3>\d+) has been revoked"
        r"|Task launch for [\w.=+-]+ failed on node [\w.-]+: Job credential revoked"
    ),
)

NOT_IN_JOB = Diagnosis(
    code="reach-not-in-job",
    title="the node does not belong to the Slurm job",
    symptoms=("srun: error: Unable to create step for job 7: Requested node configuration is not available",),
    explanation="Slurm starts steps only on nodes of the job. A job with --no-kill continues without a node that"
    " failed, and does not get it back.",
    fixes="squeue --me --format='%i %D %N'    # here; the nodes that your jobs have now\n" + _SHOW_NODE.rstrip("\n"),
    patterns=cause(
        r"Unable to create step for job (?P<job>\d+): (?:Requested node configuration is not available|Invalid node"
        r" name specified)"
    ),
)

STEP_REFUSED = Diagnosis(
    code="reach-step-refused",
    title="Slurm refused the step",
    symptoms=(
        "srun: error: Unable to create step for job 7: Requested nodes are busy",
        "srun: error: Unable to create step for job 7: Memory required by task is not available",
        "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)",
    ),
    explanation="Another step of the job holds the node's cores, memory or GPUs for itself, the node does not respond,"
    " or the step asks for more than the job has.",
    fixes="squeue --steps --nodelist={node}    # here; the steps on the node; scancel JOBID.STEPID ends one of them\n"
    "srun --overlap --mem=0 …    # lets the user's own steps share cores and memory with others",
    log_fix="srun --overlap --mem=0 …    # shares cores and memory with other steps; squeue --steps lists them",
    patterns=cause(
        r"Unable to create step for job (?P<job>\d+): (?!Requested node conf|Invalid (?:job|node)|Job|Unable|Socket)"
        r"|Job (?P<job2>\d+) step creation (?:temporarily|still) disabled, retrying",
        weight=2,
    ),
)

SRUN_PORTS = Diagnosis(
    code="reach-srun-ports",
    title="there is no free port for srun",
    symptoms=("all ports in range (60001, 60100) exhausted, cannot establish listening port",),
    explanation="Each srun listens on several ports on the machine where it runs. slurm.conf limits them"
    " to SrunPortRange, and other sruns on this machine use them all.",
    fixes="scontrol show config | grep SrunPortRange    # here; the range\n"
    "ps -C srun -o pid,user,etime,args    # here; who uses it\n"
    "# then widen SrunPortRange in slurm.conf, in the firewall, too, and run: sudo scontrol reconfigure",
    patterns=cause(
        r"all ports in range \((?P<low>\d+), (?P<high>\d+)\) exhausted|all ephemeral ports, and the range .* exhausted"
        r"|init_msg_engine_port: Address already in use"
    ),
)

NO_SLURMD = Diagnosis(
    code="reach-no-slurmd",
    title="slurmd does not respond on the node",
    symptoms=(
        "Task launch for StepId=7.2 failed on node n2: Communication connection failure",
        "srun: error: Application launch failed: Communication connection failure",
    ),
    explanation="slurmd starts the steps of a job on its node. It is not running there, the node is down or cut off,"
    " or a firewall drops the connection to slurmd's port (6818).",
    fixes=_SHOW_NODE + "sudo systemctl restart slurmd    # on {node}",
    patterns=(
        cause(_STARTED + r"(?:Communication connection failure|Socket timed out|Unable to contact|Unexpected message)"),
        cause(
            r"srun: error: timeout waiting for task launch",
            "slurmd did not report in time that the tasks were started: the node is overloaded, a file system hangs,"
            " or a prolog or the import of an image takes too long.",
        ),
    ),
)

SLURMD_REFUSED = Diagnosis(
    code="reach-slurmd-refused",
    title="slurmd refused to start a task",
    symptoms=(
        "Task launch for StepId=7.1 failed on node n2: Zero Bytes were transmitted or received",
        "Task launch for StepId=7.1 failed on node n2: Invalid job credential",
    ),
    explanation="slurmd closed the connection because it could not verify the request: munge is not running on the"
    " node, its key differs, or the node's clock is minutes off.",
    fixes="munge -n | ssh {node} unmunge    # here; must print `Success`; `Expired` or `Rewound`: a clock is off\n"
    "sudo systemctl restart munge; date    # on {node}; must show the same time as here",
    log_fix="munge -n | ssh {node} unmunge    # must print `Success`; if not, restart munge and chrony on the node",
    patterns=cause(
        _STARTED
        + r"(?:Zero Bytes|Invalid job credential|Job credential (?!revoked)|Protocol authentication|Authentication)"
        r"|slurm_receive_msgs?: \[\[(?P<node2>[\w.-]+)\]:\d+\] failed: Zero Bytes"
    ),
)

PROLOG = Diagnosis(
    code="reach-prolog",
    title="Slurm's prolog failed on the node",
    symptoms=(
        "Task launch for StepId=7.1 failed on node n2: Job prolog failed",
        "slurmstepd: error: TaskProlog failed status=1",
    ),
    explanation="slurmd runs a script of the administrator before a job's first task on a node. If it fails, Slurm"
    " drains the node, starts no task there, and requeues a batch job and holds it.",
    fixes={
        "": "sudo grep -i prolog /var/log/slurm/slurmd.log | tail    # on {node}; may also be in /var/log/slurmd.log\n"
        + _RESUME,
        "private": "ls -ld {path}; cat /etc/slurm/job_container.conf    # on {node}; BasePath must exist there\n"
        "sudo systemctl restart slurmd    # on {node}, once it does",
    },
    patterns=(
        cause(
            _STARTED + r".*[Pp]rolog|[Jj]ob prolog failed|TaskProlog failed|error: \[job \d+\] prolog failed"
            r"|srun prolog failed|Prolog error|[Pp]rolog (?:or job env setup )?failure on node (?P<node2>[\w.-]+)"
        ),
        cause(
            r"container_p_join: open failed (?P<path>\S+?): |container_[gp]_join failed",
            "slurmd could not enter the job's private /tmp (job_container/tmpfs): it was not made on this node, or was"
            " removed.",
            fix="private",
        ),
    ),
)

NODE_FAILED = Diagnosis(
    code="reach-node-failed",
    title="Slurm reports that the node failed",
    symptoms=(
        "srun: error: Node failure on n2",
        "*** JOB 12 ON n1 CANCELLED AT 2026-03-03T12:00:19 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
    ),
    explanation="slurmd on the node did not respond for SlurmdTimeout seconds, or an administrator set the node down."
    " Slurm cancels and requeues the whole job, unless it was submitted with --no-kill.",
    fixes=_SHOW_NODE + "#SBATCH --no-kill    # in the batch script; the other nodes keep running\n" + _RESUME,
)

STEP_ABORTED = Diagnosis(
    code="reach-step-aborted",
    title="a step was aborted because of another node",
    symptoms=("srun: error: Application launch failed: Communication connection failure", "srun: Job step aborted"),
    explanation="One srun starts the agents of many nodes. If it fails on one of them, Slurm ends the step on all of"
    " them, so Aboard tried again without the nodes that were named. Fix those first.",
    fixes="srun --overlap --nodes=1 --ntasks=1 --nodelist={node} hostname    # in the job; does it work alone?",
)

SRUN_FAILED = Diagnosis(
    code="reach-srun-failed",
    title="srun failed with an unrecognized error",
    symptoms=("srun exits with 1",),
    explanation="Aboard doesn't recognize srun's error message.",
    fixes="srun -v --overlap --nodes=1 --ntasks=1 --nodelist={node} hostname    # in the job; please open an issue with"
    " its last lines",
)
