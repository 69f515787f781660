"""Diagnoses of commands that contradict the Slurm job they run in."""

from aboard.diagnoses.diagnosis import Diagnosis, Mistake
from aboard.diagnoses.fixes import Advice

COPIES = Diagnosis(
    code="slurm-copies",
    title="srun started several copies of aboard",
    symptoms=("srun started 2 copies of aboard; start only one, because it starts the ranks on all nodes itself",),
    explanation="Each copy would start every rank on every node. Run a single aboard command.",
    fixes="{command:shell aboard launch -- train.py}    # in the batch script or salloc's shell, without srun\n"
    "srun --nodes=1 --ntasks=1 {command:shell aboard launch -- train.py}    # or with srun, as one task",
)

NODES = Mistake(
    code="slurm-nodes",
    fixes="add: --include {nodes:shell n1}    # only the nodes of the job\n"
    "unset SLURM_JOB_ID    # or ignore the job: then Aboard reaches all of them over ssh",
)

OVER = Mistake(
    code="slurm-job-over",
    fixes="exit    # leave this shell, and ask for another job\n"
    "unset SLURM_JOB_ID    # or use this shell without the job",
)

NODE_LIST = Diagnosis(
    code="slurm-node-list",
    title="the nodes of the Slurm job can't be read",
    symptoms=("neither SLURM_JOB_NODELIST nor scontrol lists the nodes of Slurm job 7",),
    explanation="Inside a Slurm job, Aboard takes the nodes from the job's environment, or else from scontrol. Running"
    " on this node alone would leave the others idle.",
    fixes="scontrol show job -d {job}    # does Slurm know the job?\n"
    "unset SLURM_JOB_ID    # to use this machine without the job",
)

REQUEUED = Diagnosis(
    code="slurm-requeued",
    title="Slurm requeued the job, and its command would start over",
    symptoms=("Slurm requeued job 7, and run 20250102-0304-calm-otter had started before: the same command would",),
    explanation="After a node failure or a preemption, Slurm runs the batch script again from its first line. Aboard"
    " does not repeat a run that had started: it could overwrite results. `aboard train` with `train.resume: auto`"
    " continues by itself, and another command starts again if the batch script has --requeue.",
    fixes={
        "launch": "#SBATCH --requeue    # in the batch script, if the program continues from its own checkpoint\n"
        "#SBATCH --no-requeue    # or in the batch script, so that Slurm never starts it again",
        "train": "{command:shell aboard train} --set train.resume=auto    # in the batch script; or, to start over:\n"
        "env -u SLURM_RESTART_COUNT {command:shell aboard train}",
    },
)

DETACHED = Mistake(
    code="slurm-detached",
    fixes=Advice("remove -d; to run other commands at the same time, put `&` after it, and `wait` at the script's end"),
)
