"""Diagnoses of runs in Slurm jobs, as seen from a machine that is not their batch host."""

from aboard.diagnoses.diagnosis import Diagnosis

RECORD_AWAY = Diagnosis(
    code="slurm-record-away",
    title="the run's record is on another machine",
    symptoms=("the record of RUN is on its batch host, n1",),
    explanation="The conductor runs on the first node of the job and records the run in the home directory there. If"
    " homes are not shared, only that node has the record. While the job runs, commands on the login node read it"
    " through srun.",
    fixes={
        "srun": "srun --nodes=1 --ntasks=1 --nodelist={node} {python} -m aboard {typed:shell logs RUN}",
        "controller": "scontrol ping    # is slurmctld up? Then try again",
        "accounting": "sacct --jobs={job} --format=JobID,State,ExitCode,NodeList,End    # its end, if the cluster"
        " keeps accounts",
    },
)

FORWARD = Diagnosis(
    code="slurm-forward",
    title="a command on the batch host failed",
    symptoms=("on n1 failed with exit code 1",),
    explanation="Aboard runs the command on the batch host with srun, and with the same interpreter as here. The node"
    " may lack that interpreter, or the job may be ending.",
    fixes="srun --jobid={job} --overlap --nodes=1 --ntasks=1 --nodelist={node} hostname    # can srun start a step?",
)

CANCEL = Diagnosis(
    code="slurm-cancel",
    title="a job could not be cancelled",
    symptoms=("scancel: error: Kill job error on job id 12", "job 12 is still running"),
    explanation="Slurm did not accept the cancellation, or the processes of the job do not end.",
    fixes="scancel --full {job} && squeue --jobs={job}",
)

RESUBMIT = Diagnosis(
    code="slurm-resubmit",
    title="further jobs would not continue the training",
    symptoms=("further jobs are to continue this training run, but train.resume is none",),
    explanation="With `cluster.slurm.resubmit`, a training run that Slurm ended continues in a further job with the"
    " same command. Only `train.resume: auto` resumes from the newest checkpoint; otherwise every job would repeat the"
    " same steps.",
    fixes="{command:shell aboard train} --set train.resume=auto",
)
