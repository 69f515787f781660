"""Log messages about jobs and launchers, from Slurm, torchrun and DeepSpeed."""

from aboard.diagnoses.diagnosis import Diagnosis, warning
from aboard.diagnoses.output_patterns import cause, end, info

TIME_LIMIT = Diagnosis(
    code="log-time-limit",
    title="the job reached its time limit",
    symptoms=("CANCELLED AT 2026-03-03T12:00:19 DUE TO TIME LIMIT",),
    explanation="Slurm cancels a job when its time limit (`--time`) expires. Steps since the last checkpoint are lost.",
    fixes="#SBATCH --time=24:00:00    # sets a longer limit;"
    " or save a checkpoint before the limit: #SBATCH --signal=USR1@300",
    patterns=cause(
        r"(?:(?:STEP|JOB) (?P<job>[\d.]+) (?:ON (?P<node>[\w.-]+) )?)?CANCELLED AT (?P<at>\S+) DUE TO TIME LIMIT"
        r"|DUE TO TIME LIMIT"
    ),
)

PREEMPTED = Diagnosis(
    code="log-preempted",
    title="a job with higher priority took the nodes",
    symptoms=("CANCELLED AT 2026-06-06T06:06:06 DUE TO PREEMPTION",),
    explanation="Slurm cancelled this job to give its nodes to a job with higher priority. Steps since the last"
    " checkpoint are lost.",
    fixes="#SBATCH --requeue    # restarts the job automatically; the script must resume from a checkpoint",
    patterns=cause(r"CANCELLED AT (?P<at>\S+) DUE TO PREEMPTION|DUE TO PREEMPTION"),
)

CANCELLED = Diagnosis(
    code="log-cancelled",
    title="the job was cancelled",
    symptoms=("slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-03-03T12:00:19 ***",),
    explanation="The job was cancelled by a user, or by Slurm after another step failed.",
    fixes="sacct -j {job} --format=JobID,State,ExitCode,End,NodeList    # which step ended first, and how",
    patterns=end(r"\*\*\* (?:STEP|JOB) (?P<job>[\d.]+) (?:ON (?P<node>[\w.-]+) )?CANCELLED AT (?P<at>\S+) \*\*\*"),
)

CPU_BINDING = Diagnosis(
    code="log-cpu-binding",
    title="ranks are bound to cores outside the job's allocation",
    symptoms=("CPU binding outside of job step allocation",),
    explanation="The cores that the ranks are bound to were not allocated to this job. Usually the job or its step"
    " requested too few cores for its ranks.",
    fixes="srun --cpu-bind=none …    # or request the cores: #SBATCH --cpus-per-task=N, srun --cpus-per-task=N",
    patterns=cause(r"CPU binding outside of job step allocation"),
)

SLURM_REQUEST = Diagnosis(
    code="log-slurm-request",
    title="Slurm can't satisfy the request",
    symptoms=("Requested node configuration is not available",),
    explanation="The job asks for more than the nodes have or the account is allowed to use, or for a partition,"
    " account or resource that does not exist.",
    fixes="sinfo -o '%P %D %c %m %G %l'    # shows what is available; scontrol show job JOBID",
    patterns=cause(
        r"(?:srun|sbatch|salloc): error: (?!Unable to (?:create step|confirm)).*(?:Requested node configuration is not"
        r" available|Invalid (?:account|partition|qos|feature|generic resource)|More processors requested than"
        r" permitted|[Jj]ob violates accounting|Requested time limit is invalid|Node count specification invalid"
        r"|Requested partition configuration not available|Unable to allocate[^:]*: (?!Unable to contact|Socket timed))"
    ),
)

TOLD_TO_STOP = Diagnosis(
    code="log-told-to-stop",
    title="the launcher received a stop signal",
    symptoms=("SignalException: Process 77 got signal: 15",),
    explanation="A launcher that receives a stop signal ends all its ranks. The signal may come from Slurm at the time"
    " limit, from a preemption, or from an ssh session that was closed (signal 1 is SIGHUP).",
    fixes="sacct -j JOBID --format=JobID,State,ExitCode,End    # under Slurm: shows what stopped the job\n"
    "nohup torchrun … &    # over ssh: keeps running after the session closes; or use tmux",
    patterns=end(
        r"SignalException: Process \d+ got signal: (?P<signal>15|1|10|12)\b|Received (?P<signal2>\d+"
        r"|SIG\w+) death signal|Main process received SIGTERM, exiting|Received SIGTERM: 15|Got termination signal",
        weight=2,
    ),
)

INTERRUPTED = Diagnosis(
    code="log-interrupted",
    title="a user pressed Ctrl-C",
    symptoms=("KeyboardInterrupt", "got signal: 2"),
    explanation="The program received SIGINT, usually because a user pressed Ctrl-C in its terminal.",
    remedy="Nothing needs fixing: the run was stopped on request.",
    patterns=end(r"^KeyboardInterrupt|got signal: 2\b|Main process received SIGINT"),
)

DEEPSPEED_BATCH = Diagnosis(
    code="log-deepspeed-batch",
    title="DeepSpeed's batch sizes don't match the number of ranks",
    symptoms=("Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu",),
    explanation="train_batch_size must equal micro-batch × accumulation steps × ranks. It was probably set for a"
    " different number of ranks.",
    fixes='"train_batch_size": "auto"    # in ds_config.json; or leave out one of the three batch settings',
    patterns=cause(r"Check batch related parameters\. train_batch_size is not equal to"),
)

LOSS_SCALE = Diagnosis(
    code="log-loss-scale",
    title="fp16 training diverged",
    symptoms=("Current loss scale already at minimum - cannot decrease scale anymore",),
    explanation="Every step overflowed in fp16 until the loss scale reached its minimum. Either the model diverged, or"
    " it needs bf16.",
    fixes='"bf16": {{"enabled": true}}    # in ds_config.json, instead of fp16, if the GPUs support it',
    patterns=cause(r"Current loss scale already at minimum"),
)

HOSTFILE = Diagnosis(
    code="log-hostfile",
    title="DeepSpeed can't use its hostfile",
    symptoms=("Hostfile is empty or not formatted correctly",),
    explanation="The hostfile is empty, has an invalid or repeated line, or lacks a node or slot that was requested.",
    fixes="cat hostfile    # one `NAME slots=N` per line, each name once",
    patterns=cause(
        r"Hostfile (?:contains|is empty)|not found in hostfile|No slot '\d+' specified on host"
        r"|Num nodes is >1 but no extra nodes|Unable to proceed, unable to parse"
    ),
)

LOCAL_ONLY = warning(
    code="log-local-only",
    title="DeepSpeed trains on one machine only",
    symptoms=("Unable to find hostfile, will proceed with training with local resources only.",),
    explanation="DeepSpeed did not find a hostfile at the path that it reads (/job/hostfile), so it uses only this"
    " machine's GPUs.",
    fixes="deepspeed --hostfile=./hostfile …    # if more than one node was intended",
    patterns=info(r"Unable to find hostfile, will proceed with training with local resources only"),
)

EXTENSION = Diagnosis(
    code="log-extension",
    title="a native extension could not be built",
    symptoms=("Error building extension 'fused_adam'",),
    explanation="Possible causes: this node has no compiler, its CUDA toolkit does not match torch's CUDA version, or"
    " two nodes are writing to the same build cache.",
    fixes="rm -rf ~/.cache/torch_extensions; nvcc --version; c++ --version    # on {node}; then rerun",
    patterns=cause(
        r"Error building extension '(?P<name>\w+)'|ninja: build stopped|Ninja is required to load C\+\+ extensions",
        weight=2,
    ),
)

LOCAL_RANK = Diagnosis(
    code="log-local-rank",
    title="the script doesn't accept --local-rank",
    symptoms=("error: unrecognized arguments: --local-rank=0",),
    explanation="The launcher passes --local-rank (with a dash since torch 2.0) to the script, and the script has no"
    " such option.",
    fixes="torchrun …    # does not pass this option; the script reads LOCAL_RANK from the environment",
    patterns=cause(r"unrecognized arguments: --local[-_]rank"),
)

ARGUMENTS = Diagnosis(
    code="log-arguments",
    title="the script was called with wrong arguments",
    symptoms=("error: unrecognized arguments: --foo",),
    explanation="The script was called with arguments that it doesn't accept, or without required ones, so it exited"
    " before training.",
    fixes="python {script} --help",
    patterns=cause(
        r"(?:(?<![\w./-])(?P<script>[\w./-]{1,300}\.py): )?error: (?:unrecognized arguments: (?P<arguments>.+)"
        r"|the following arguments are required: (?P<missing>.+))",
        weight=2,
    ),
)

PMI = Diagnosis(
    code="log-pmi",
    title="MPI and its launcher don't understand each other (PMI)",
    symptoms=(
        "OPAL ERROR: Unreachable in file pmix3x_client.c at line 112",
        "OMPI was not built with SLURM's PMI support",
        "PMIX ERROR: NOT-FOUND in file server/pmix_server.c",
    ),
    explanation="Ranks learn their numbers and their peers from the launcher over PMI. The program's MPI and Slurm (or"
    " mpirun) must use the same kind and a compatible version of it.",
    fixes={
        "": "srun --mpi=list    # the kinds that this Slurm has\n"
        "srun --mpi=pmix …    # with the kind that the program's MPI was built for; or start it with mpirun in the job",
        "munge": "export PMIX_MCA_psec=native    # where the program starts; or install libmunge there",
    },
    patterns=(
        cause(
            r"Component: munge\b|pmix_psec_base_open failed",
            "PMIx can't load its plugin for munge, which Slurm asks for: the library is missing where the program"
            " runs, usually in a container.",
            fix="munge",
        ),
        cause(
            r"OMPI was not built with SLURM|PMI2?_Init failed|OPAL ERROR: Unreachable in file pmix|PMIX ERROR: [A-Z]"
            r"|pmix_init failed|error: +mpi/pmix\w*: ",
            weight=2,
        ),
    ),
)

SCRIPT_LOST = Diagnosis(
    code="log-script-lost",
    title="slurmd can't find the batch script that it received",
    symptoms=("slurmstepd: error: execve(): /tmp/slurmd/job00089/slurm_script: No such file or directory",),
    explanation="slurmd writes the batch script into its spool directory. On this node the directory is missing or"
    " full, or is cleaned by something else, such as a job that tidies /tmp.",
    fixes="scontrol show config | grep SlurmdSpoolDir    # then look at that directory on {node}\n"
    "sbatch --exclude={node} …    # until the node's slurmd is repaired",
    patterns=cause(r"execve\(\): \S*/slurm_script: No such file", precedence=450),
)

STEP_LAYOUT = Diagnosis(
    code="log-step-layout",
    title="a step's tasks don't fit on its CPUs",
    symptoms=("srun: error: Application launch failed: Unable to layout tasks on given cpus",),
    explanation="The options for tasks, cores and threads contradict each other. srun inherits those of the job from"
    " variables such as SLURM_CPUS_PER_TASK and SLURM_CPU_BIND.",
    fixes="env | grep -E 'SLURM_(NTASKS|CPU|TRES|THREADS)'    # in the job; what does srun inherit?\n"
    "srun --cpu-bind=none --ntasks-per-node=1 …    # then set what differs",
    patterns=cause(r"Unable to layout tasks on given cpus|failed to distribute tasks"),
)
