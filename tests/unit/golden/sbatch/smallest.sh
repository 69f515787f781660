#!/bin/bash
#SBATCH --job-name=aboard-launch
#SBATCH --nodes=2
# One task on each node: an agent of Aboard, which starts the ranks there.
#SBATCH --ntasks-per-node=1
# If a node fails, Slurm keeps the job; Aboard reports the node, and stops the run or restarts it.
#SBATCH --no-kill
# 120 s before the time limit, Slurm signals only the command below, which saves and stops.
#SBATCH --signal=B:USR1@120
# In the directory of the job.
#SBATCH --output=slurm-%j.out
# A requeued job continues the output of its earlier start.
#SBATCH --open-mode=append
# The job gets the variables of the shell that submits it.
#SBATCH --export=ALL

cd /home/alice/llama || exit 3
# exec: Slurm's signals reach the process of this script, which has to be Aboard, not bash.
exec /home/alice/venv/bin/python -P -m aboard launch -- train.py
