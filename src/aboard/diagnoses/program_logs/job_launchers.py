"""What logs tell of jobs and launchers: messages of Slurm, torchrun and DeepSpeed."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.messages import cause, end, info

TIME_LIMIT = Diagnosis(
    code="log-time-limit",
    title="the job's time was up",
    symptoms=("CANCELLED AT 2026-03-03T12:00:19 DUE TO TIME LIMIT",),
    explanation="The job's time was up.",
    fixes="#SBATCH --time=24:00:00    # more of it; or checkpoint in time with #SBATCH --signal=USR1@300",
    patterns=cause(
        r"(?:(?:STEP|JOB) (?P<job>[\d.]+) (?:ON (?P<node>[\w.-]+) )?)?CANCELLED AT (?P<at>\S+) DUE TO TIME LIMIT"
        r"|DUE TO TIME LIMIT"
    ),
)

PREEMPTED = Diagnosis(
    code="log-preempted",
    title="a job of higher priority took the nodes",
    symptoms=("CANCELLED AT 2026-06-06T06:06:06 DUE TO PREEMPTION",),
    explanation="A job of higher priority took the nodes.",
    fixes="#SBATCH --requeue    # starts it again by itself; resume from the last checkpoint",
    patterns=cause(r"CANCELLED AT (?P<at>\S+) DUE TO PREEMPTION|DUE TO PREEMPTION"),
)

CANCELLED = Diagnosis(
    code="log-cancelled",
    title="the job was cancelled",
    symptoms=("slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-03-03T12:00:19 ***",),
    explanation="Somebody, or a step that failed before, cancelled it.",
    fixes="sacct -j {job} --format=JobID,State,ExitCode,End,NodeList    # which step ended first, and how",
    patterns=end(r"\*\*\* (?:STEP|JOB) (?P<job>[\d.]+) (?:ON (?P<node>[\w.-]+) )?CANCELLED AT (?P<at>\S+) \*\*\*"),
)

CPU_BINDING = Diagnosis(
    code="log-cpu-binding",
    title="ranks are bound to cores that the job hasn't got",
    symptoms=("CPU binding outside of job step allocation",),
    explanation="The cores that ranks were to be bound to are not those of the job.",
    fixes="srun --cpu-bind=none …    # or ask for the cores: #SBATCH --cpus-per-task=N, srun --cpus-per-task=N",
    patterns=cause(r"CPU binding outside of job step allocation"),
)

SLURM_REQUEST = Diagnosis(
    code="log-slurm-request",
    title="Slurm can't give what was asked for",
    symptoms=("Requested node configuration is not available",),
    explanation="Slurm can't give what was asked for.",
    fixes="sinfo -o '%P %D %c %m %G %l'    # what there is; scontrol show job JOBID",
    patterns=cause(
        r"(?:srun|sbatch|salloc): error: .*(?:Requested node configuration is not available|Invalid (?:account"
        r"|partition|qos|generic resource)|More processors requested than permitted|Job violates accounting"
        r"|Unable to (?:allocate|create step)[^:]*: )"
    ),
)

CONTAINER = Diagnosis(
    code="log-container",
    title="a container could not be started",
    symptoms=("slurmstepd: error: pyxis: container start failed",),
    explanation="The container could not be started on this node.",
    fixes="ls -l IMAGE; df -h /tmp    # on {node}; is the image there, and room to unpack it?",
    patterns=cause(
        r"slurmstepd-(?P<node>[\w.-]+): error: pyxis: |error: pyxis: |enroot.*(?:ERROR|error)"
        r"|FATAL: +(?:could not open image|[Uu]nable to handle|image)",
        weight=2,
    ),
)

TOLD_TO_STOP = Diagnosis(
    code="log-told-to-stop",
    title="the launcher was told to stop",
    symptoms=("SignalException: Process 77 got signal: 15",),
    explanation="Somebody told the launcher to stop: Slurm at its limit, a preemption, or an ssh session that was"
    " closed (signal 1 is SIGHUP).",
    fixes="sacct -j JOBID --format=JobID,State,ExitCode,End    # under Slurm: who ended it\n"
    "nohup torchrun … &    # over ssh: outlives the session; or tmux",
    patterns=end(
        r"SignalException: Process \d+ got signal: (?P<signal>15|1|10|12)\b|Received (?P<signal2>\d+"
        r"|SIG\w+) death signal|Main process received SIGTERM, exiting|Received SIGTERM: 15|Got termination signal",
        weight=2,
    ),
)

INTERRUPTED = Diagnosis(
    code="log-interrupted",
    title="somebody pressed Ctrl-C",
    symptoms=("KeyboardInterrupt", "got signal: 2"),
    explanation="Somebody pressed Ctrl-C.",
    remedy="Nothing is to be mended: it was asked to end.",
    patterns=end(r"^KeyboardInterrupt|got signal: 2\b|Main process received SIGINT"),
)

DEEPSPEED_BATCH = Diagnosis(
    code="log-deepspeed-batch",
    title="DeepSpeed's batch sizes don't fit the number of ranks",
    symptoms=("Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu",),
    explanation="train_batch_size must be micro batch × accumulation × ranks: it was written for another number of"
    " ranks.",
    fixes='"train_batch_size": "auto"    # in ds_config.json; or leave one of the three out',
    patterns=cause(r"Check batch related parameters\. train_batch_size is not equal to"),
)

LOSS_SCALE = Diagnosis(
    code="log-loss-scale",
    title="training in fp16 diverged",
    symptoms=("Current loss scale already at minimum - cannot decrease scale anymore",),
    explanation="Every step overflowed in fp16 until the loss scale was at its minimum: the model diverged, or wants"
    " bf16.",
    fixes='"bf16": {{"enabled": true}}    # in ds_config.json, in place of fp16, where the GPUs can',
    patterns=cause(r"Current loss scale already at minimum"),
)

HOSTFILE = Diagnosis(
    code="log-hostfile",
    title="DeepSpeed can't use its hostfile",
    symptoms=("Hostfile is empty or not formatted correctly",),
    explanation="DeepSpeed can't use its hostfile.",
    fixes="cat hostfile    # one `NAME slots=N` a line, each name once",
    patterns=cause(
        r"Hostfile (?:contains|is empty)|not found in hostfile|No slot '\d+' specified on host"
        r"|Num nodes is >1 but no extra nodes|Unable to proceed, unable to parse"
    ),
)

LOCAL_ONLY = Diagnosis(
    code="log-local-only",
    title="DeepSpeed trains on one machine only",
    severity=Severity.WARN,
    symptoms=("Unable to find hostfile, will proceed with training with local resources only.",),
    explanation="DeepSpeed trains on this machine alone: its hostfile is not where it looks (/job/hostfile).",
    fixes="deepspeed --hostfile=./hostfile …    # if more than one node was meant",
    patterns=info(r"Unable to find hostfile, will proceed with training with local resources only"),
)

EXTENSION = Diagnosis(
    code="log-extension",
    title="a native extension could not be built",
    symptoms=("Error building extension 'fused_adam'",),
    explanation="A native extension could not be compiled on this node: no compiler, another CUDA, or a cache that"
    " two nodes write to.",
    fixes="rm -rf ~/.cache/torch_extensions; nvcc --version; c++ --version    # on {node}; then start again",
    patterns=cause(
        r"Error building extension '(?P<name>\w+)'|ninja: build stopped|Ninja is required to load C\+\+ extensions",
        weight=2,
    ),
)

LOCAL_RANK = Diagnosis(
    code="log-local-rank",
    title="the script doesn't know --local-rank",
    symptoms=("error: unrecognized arguments: --local-rank=0",),
    explanation="The launcher passes --local-rank (with a dash since torch 2.0) to a script that doesn't know it.",
    fixes="torchrun …    # passes none; the script reads LOCAL_RANK from the environment",
    patterns=cause(r"unrecognized arguments: --local[-_]rank"),
)

ARGUMENTS = Diagnosis(
    code="log-arguments",
    title="the script was given arguments that it doesn't take",
    symptoms=("error: unrecognized arguments: --foo",),
    explanation="The script was given arguments that it doesn't take, or lacks some.",
    fixes="python {script} --help",
    patterns=cause(
        r"(?:(?P<script>[\w./-]+\.py): )?error: (?:unrecognized arguments: (?P<arguments>.+)"
        r"|the following arguments are required: (?P<missing>.+))",
        weight=2,
    ),
)
