"""Slurm: what srun, slurmstepd and slurmctld say."""

from aboard.verdicts.logs.symptom import Symptom, cause, echo, end

SYMPTOMS: tuple[Symptom, ...] = (
    cause(
        "log-time-limit",
        r"(?:(?:STEP"
        r"|JOB) (?P<job>[\d.]+) (?:ON (?P<node>[\w.-]+) )?)?CANCELLED AT (?P<at>\S+) DUE TO TIME LIMIT"
        r"|DUE TO TIME LIMIT",
        "The job's time was up.",
        "#SBATCH --time=24:00:00    # more of it; or checkpoint in time with #SBATCH --signal=USR1@300",
        weight=3,
    ),
    cause(
        "log-preempted",
        r"CANCELLED AT (?P<at>\S+) DUE TO PREEMPTION|DUE TO PREEMPTION",
        "A job of higher priority took the nodes.",
        "#SBATCH --requeue    # starts it again by itself; resume from the last checkpoint",
        weight=3,
    ),
    cause(
        "run-node-gone",
        r"DUE TO NODE FAILURE|Node failure on (?P<node>[\w.,\[\]-]+)"
        r"|[Nn]ode (?P<node2>[\w.-]+) (?:is )?not responding|NODE_FAIL",
        "Slurm lost a node: power, kernel, or its network.",
        "scontrol show node {node} | grep -E 'State|Reason'    # why",
        "#SBATCH --exclude={node}    # goes on without it",
        weight=3,
    ),
    end(
        "log-cancelled",
        r"\*\*\* (?:STEP|JOB) (?P<job>[\d.]+) (?:ON (?P<node>[\w.-]+) )?CANCELLED AT (?P<at>\S+) \*\*\*",
        "Somebody, or a step that failed before, cancelled it.",
        "sacct -j {job} --format=JobID,State,ExitCode,End,NodeList    # which step ended first, and how",
    ),
    cause(
        "log-cpu-binding",
        r"CPU binding outside of job step allocation",
        "The cores that ranks were to be bound to are not those of the job.",
        "srun --cpu-bind=none …    # or ask for the cores: #SBATCH --cpus-per-task=N, srun --cpus-per-task=N",
        weight=3,
    ),
    cause(
        "host-clock",
        r"[Mm]unge decode failed: (?:Expired|Rewound) credential|Expired credential|Rewound credential",
        "The clocks of two nodes are more than some minutes apart, so that Slurm's keys are too old.",
        "chronyc tracking    # on {node}; sudo systemctl restart chronyd",
        weight=3,
    ),
    cause(
        "log-slurm-request",
        r"(?:srun|sbatch|salloc): error: .*(?:Requested node configuration is not available|Invalid (?:account"
        r"|partition|qos|generic resource)"
        r"|More processors requested than permitted|Job violates accounting|Unable to (?:allocate"
        r"|create step)[^:]*: )",
        "Slurm can't give what was asked for.",
        "sinfo -o '%P %D %c %m %G %l'    # what there is; scontrol show job JOBID",
        weight=3,
    ),
    cause(
        "log-container",
        r"slurmstepd-(?P<node>[\w.-]+): error: pyxis: |error: pyxis: |enroot.*(?:ERROR|error)"
        r"|FATAL: +(?:could not open image|[Uu]nable to handle|image)",
        "The container could not be started on this node.",
        "ls -l IMAGE; df -h /tmp    # on {node}; is the image there, and room to unpack it?",
        weight=2,
    ),
    end(
        "run-killed",
        r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: (?P<signal>Killed|Segmentation fault"
        r"|Aborted|Illegal instruction|Terminated)",
        "Slurm tells how the task ended, not why.",
        "sudo dmesg -T | tail -50    # on {node}; was memory out?",
    ),
    end(
        "run-exited",
        r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: Exited with exit code (?P<code>\d+)",
        "Slurm tells how the task ended, not why.",
        "sacct -j JOBID --format=JobID,State,ExitCode,End,NodeList    # which ended first",
    ),
    echo(
        r"srun: (?:Job step aborted|Terminating (?:StepId|job step)|Force Terminated)"
        r"|srun: error: .*: task \d+: Terminated"
    ),
    echo(r"slurmstepd: error: \*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+ DUE TO SIGNAL"),
)
