"""Diagnoses of jobs that can't be submitted from a login node, or whose script can't start."""

from aboard.diagnoses.diagnosis import Diagnosis, Mistake
from aboard.diagnoses.fixes import Advice

REQUEST = Mistake(
    code="slurm-request",
    fixes=Advice("add --set cluster.slurm.nodes=4 before `--`, or to aboard.yaml: cluster: {{slurm: {{nodes: 4}}}}"),
)

OUTSIDE = Mistake(code="slurm-outside-job", fixes="{salloc:shell salloc --nodes=4} {command:shell aboard check}")

SECRET = Diagnosis(
    code="slurm-secret",
    title="a secret would be written into a batch script",
    symptoms=("its value may be a secret, and a batch script is no place for one",),
    explanation="Slurm keeps a copy of each script. Variables of ranks are passed by name: `--env HF_TOKEN` takes the"
    " value from the shell that submits the job.",
    fixes={
        "file": Advice("write {key} into aboard.yaml instead, readable only by you"),
        "variable": Advice("export {name} in this shell, and add --env {name} before `--`"),
    },
)

SUBMIT = Diagnosis(
    code="slurm-submit",
    title="Slurm refused the job",
    symptoms=(
        "sbatch: error: Batch job submission failed: Invalid partition name specified",
        "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
        "sbatch: error: Batch job submission failed: Invalid qos specification",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
        "sbatch: error: Batch job submission failed: Node count specification invalid",
    ),
    explanation="The request in `cluster.slurm` does not fit the cluster, its partitions, or your account's limits.",
    fixes={
        "partition": "sinfo --summarize    # lists the partitions; then set cluster.slurm.partition",
        "account": "sacctmgr show associations user=$USER format=account,partition,qos    # then set"
        " cluster.slurm.account",
        "qos": "sacctmgr show associations user=$USER format=account,qos    # then set cluster.slurm.qos",
        "nodes": "sinfo --format='%P %D %c %m %G %f'    # partition, nodes, cores, memory, GPUs, features; then ask"
        " for less",
        "time": "sinfo --format='%P %l'    # the time limit of each partition; then set cluster.slurm.time",
        "option": "sbatch --help    # then correct cluster.slurm.extra",
        "other": "sbatch --test-only {script}    # checks the script without submitting it",
        "missing": Advice("run the command on a login node of the cluster, which has sbatch"),
        "controller": "scontrol ping    # is slurmctld up? Then try again",
    },
)

SCRIPT_START = Diagnosis(
    code="slurm-script-start",
    title="the batch script could not start Aboard",
    symptoms=("exec: /home/alice/venv/bin/python: cannot execute: No such file or directory",),
    explanation="The script changes to the directory of the submission and runs the same Python as on the login node."
    " Both have to exist at the same paths on the nodes, for example on a shared file system.",
    fixes="{srun:shell srun --partition=gpu} -N1 -n1 ls -ld {directory} {python}    # does a node have both?",
)
