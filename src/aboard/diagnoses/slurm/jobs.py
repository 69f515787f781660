"""Slurm jobs that wait, can't start or were ended, and what shortens a job's life."""

from aboard.diagnoses.diagnosis import Diagnosis, remark, warning
from aboard.diagnoses.output_patterns import cause, info, odd

# A line of squeue, which ends in the reason, and a line of `scontrol show job`.
# Runs of bounded length: a line of digits must not take seconds.
_QUEUED = r"(?<![\d_+])(?P<job{n}>\d[\d_+]{0,40})\s.{0,150}\s(?:PD|PENDING)\s.{0,150}"

WAITING = remark(
    code="slurm-waiting",
    title="the Slurm job waits for its turn",
    symptoms=("PD 0:00 4 (Resources)", "PD 0:00 4 (Priority)", "JobState=PENDING Reason=Priority"),
    explanation="The job starts by itself when nodes are free and no job with a higher priority wants them. A smaller"
    " or shorter job starts earlier, because Slurm can fit it in before larger ones.",
    fixes="squeue --start --jobs={job}    # here; when Slurm expects to start it\n"
    "sprio --long --jobs={job}    # here; how its priority is made up\n"
    "scontrol update jobid={job} timelimit=4:00:00    # a shorter limit often starts earlier",
    patterns=info(_QUEUED.replace("{n}", "") + r"\((?:Resources|Priority)\)\s*$"),
)

LIMIT = warning(
    code="slurm-limit",
    title="a limit of the QOS or account keeps the Slurm job waiting",
    symptoms=(
        "PD 0:00 4 (QOSMaxJobsPerUserLimit)",
        "PD 0:00 4 (QOSMaxGRESPerUser)",
        "PD 0:00 4 (AssocGrpGRES)",
        "PD 0:00 4 (AssocMaxJobsLimit)",
    ),
    explanation="A limit on running jobs, nodes, GPUs or GPU hours is reached. With a limit per user or group, the job"
    " starts when other jobs end; with a limit per job, it never does.",
    fixes="squeue --me    # here; your jobs that count toward the limit\n"
    "sacctmgr show qos format=Name,MaxTRES,MaxTRESPU,MaxJobsPU,GrpTRES,MaxWall    # here; the limits of each QOS\n"
    "sacctmgr show assoc user=$USER format=Account,QOS,MaxTRES,MaxJobs,GrpTRES    # here; those of your accounts",
    patterns=odd(
        _QUEUED.replace("{n}", "")
        + r"\(QOS\w+\)\s*$|"
        + _QUEUED.replace("{n}", "2")
        + r"\(Assoc\w+\)\s*$|Reason=QOS\w+|Reason=Assoc\w+"
    ),
)

HELD = Diagnosis(
    code="slurm-held",
    title="the Slurm job is on hold",
    symptoms=("PD 0:00 4 (JobHeldUser)", "PD 0:00 4 (JobHeldAdmin)", "PD 0:00 4 (launch failed requeued held)"),
    explanation="Slurm starts a job on hold only after it was released. Slurm itself holds a job that a node could not"
    " start: usually its prolog failed there, or it could not create the output file.",
    fixes={
        "release": "scontrol release {job}    # here",
        "administrator": "scontrol show job {job} | grep -E 'Reason|Comment'    # here; only an administrator can"
        " release it",
        "failed": "sinfo --list-reasons    # here; a node whose prolog failed is drained: see `aboard why"
        " reach-prolog`\n"
        "scontrol release {job}    # here, once the cause is fixed",
    },
    log_fix="scontrol release {job}    # sinfo -R shows nodes that failed; JobHeldAdmin needs an administrator",
    patterns=cause(
        _QUEUED.replace("{n}", "")
        + r"\(JobHeld(?:User|Admin)\)\s*$|"
        + _QUEUED.replace("{n}", "2")
        + r"\([\w -]{0,40}requeued[ _]held\)\s*$|Reason=JobHeld(?:User|Admin)|Reason=launch_failed_requeued_held"
    ),
)

IMPOSSIBLE = Diagnosis(
    code="slurm-impossible",
    title="the Slurm job can't start as requested",
    symptoms=(
        "PD 0:00 4 (DependencyNeverSatisfied)",
        "PD 0:00 4 (PartitionTimeLimit)",
        "PD 0:00 4 (PartitionNodeLimit)",
        "PD 0:00 4 (BadConstraints)",
        "PD 0:00 4 (InvalidQOS)",
    ),
    explanation="The job asks for something that Slurm can't give: more time or nodes than the partition allows,"
    " features that no node has, an account or QOS that is not yours, or the success of a job that failed. It waits"
    " until somebody changes or cancels it.",
    fixes={
        "": "scontrol show job {job}    # here; what it asks for\nscancel {job}    # here; then submit it anew",
        "partition": "sinfo --format='%P %a %l %D %G'    # here; the limits of each partition: state, time, nodes,"
        " GPUs\n"
        "scontrol update jobid={job} timelimit=1:00:00    # here; or partition=NAME, or numnodes=N",
        "constraint": "sinfo --format='%f %G %D %N'    # here; features and GPUs of all nodes",
        "account": "sacctmgr show assoc user=$USER format=Account,Partition,QOS    # here; what you may use\n"
        "scontrol update jobid={job} account=NAME    # here; or qos=NAME",
        "dependency": "scancel {job}    # here; it never starts",
    },
    log_fix="scontrol show job {job}    # what it asks for; sinfo -o '%P %a %l %D %G' shows what partitions allow",
    patterns=cause(
        _QUEUED.replace("{n}", "")
        + r"\((?:DependencyNeverSatisfied|Partition(?:Time|Node)Limit|BadConstraints|Invalid(?:QOS|Account))\)\s*$"
        r"|Reason=DependencyNeverSatisfied|Reason=Partition(?:Time|Node)Limit|Reason=BadConstraints"
        r"|Reason=Invalid(?:QOS|Account)\b"
    ),
)

UNAVAILABLE = warning(
    code="slurm-unavailable",
    title="nodes that the Slurm job needs are down, drained or reserved",
    symptoms=(
        "PD 0:00 4 (ReqNodeNotAvail, UnavailableNodes:n2)",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
    ),
    explanation="The job starts when the nodes are back, and not before. A node is drained by an administrator, by a"
    " health check, or by Slurm itself after its prolog failed.",
    fixes="sinfo --list-reasons    # here; which nodes, since when and why\n"
    "scontrol show reservation    # here; or a maintenance that begins before the job would end\n"
    "sudo scontrol update nodename={nodes} state=resume    # here, once the cause is fixed",
    patterns=odd(
        _QUEUED.replace("{n}", "")
        + r"\((?:ReqNodeNotAvail[^)]*|NodeDown)\)\s*$|Nodes required for job are DOWN, DRAINED or reserved"
        r"|ReqNodeNotAvail(?:, UnavailableNodes:(?P<nodes>[\w.,\[\]-]+))?"
    ),
)

PARTITION_CLOSED = warning(
    code="slurm-partition-closed",
    title="the partition of the Slurm job is closed",
    symptoms=("PD 0:00 4 (PartitionDown)", "PD 0:00 4 (PartitionInactive)"),
    explanation="A partition that is down or inactive starts no jobs, usually during a maintenance.",
    fixes="sinfo --format='%P %a %l %D'    # here; which partitions are up\n"
    "scontrol update jobid={job} partition=NAME    # here; or wait until it is opened",
    patterns=odd(
        _QUEUED.replace("{n}", "") + r"\(Partition(?:Down|Inactive)\)\s*$|Reason=PartitionDown|Reason=PartitionInactive"
        r"|Required partition not available \(inactive or drain\)"
    ),
)

NODE_DRAINED = warning(
    code="slurm-node-drained",
    title="Slurm drains a node of the job",
    symptoms=("State=MIXED+DRAIN", "State=ALLOCATED+DRAIN"),
    explanation="Slurm gives the node no further jobs, and somebody or a health check had a reason for it. This job"
    " keeps the node until it ends; a job that is submitted again runs without it.",
    fixes="sinfo --list-reasons --nodes={node}    # here; who drained it, when and why\n"
    "sudo scontrol update nodename={node} state=resume    # here, once the cause is fixed",
)

NODE_DOWN = Diagnosis(
    code="slurm-node-down",
    title="Slurm considers a node of the job lost",
    symptoms=("State=DOWN*", "State=MIXED*", "slurmctld: error: Nodes n2 not responding"),
    explanation="slurmd on the node does not respond to slurmctld. After SlurmdTimeout seconds, Slurm sets the node"
    " down and ends the job, or with --no-kill continues it without the node.",
    fixes="scontrol show node {node} | grep -E 'State|Reason'    # here\nsudo systemctl restart slurmd    # on {node}",
    leads_to=("reach-no-slurmd", "reach-slurmd-refused", "reach-not-in-job", "reach-timeout", "reach-silent"),
)

SUSPENDED = Diagnosis(
    code="slurm-suspended",
    title="the Slurm job is suspended",
    symptoms=("JobState=SUSPENDED",),
    explanation="Slurm has stopped the job's processes, and starts no steps: an administrator suspended it, or a job"
    " with a higher priority uses the nodes (PreemptMode=SUSPEND). It continues by itself in the second case.",
    fixes="squeue --me --states=suspended    # here\n"
    "sudo scontrol resume {job}    # here; if an administrator suspended it",
    leads_to=("reach-silent", "reach-timeout", "reach-step-refused", "reach-step-aborted"),
)

TIME_LEFT = warning(
    code="slurm-time-left",
    title="the Slurm job ends soon",
    symptoms=("DUE TO TIME LIMIT",),
    explanation="Slurm ends the job at its time limit. A training run that is stopped there continues from its last"
    " checkpoint in a new job.",
    fixes="sudo scontrol update jobid={job} timelimit=+60    # here; 60 min more; users can only lower it",
)

PORT_RANGE = warning(
    code="slurm-port-range",
    title="SrunPortRange is too small for this many nodes",
    symptoms=("all ports in range (60001, 60100) exhausted, cannot establish listening port",),
    explanation="Each srun listens on four ports, and on two more for every further 48 nodes. Aboard starts one srun"
    " for up to 64 nodes, and one for each node that it has to reconnect. All sruns on this machine share the range,"
    " those of other users, too.",
    fixes="scontrol show config | grep SrunPortRange    # here\n"
    "# then widen SrunPortRange in slurm.conf and in the firewall to at least {ports} ports\n"
    "sudo scontrol reconfigure    # on the controller",
    leads_to=("reach-srun-ports",),
)

ENDED = Diagnosis(
    code="slurm-ended",
    title="the Slurm job has ended",
    symptoms=("JobState=BOOT_FAIL", "JobState=DEADLINE", "JobState=FAILED"),
    explanation="Slurm's record of the job shows how it ended; the output of its script is in the job's output file.",
    fixes="sacct -j {job} --format=JobID,State,ExitCode,Reason,NodeList    # here; how each step ended\n"
    "tail -n 50 {output}    # here; the output of the batch script",
)
